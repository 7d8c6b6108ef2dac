"""`python -m elmo_jax` is the same command as `elmo-jax`."""

import sys

from elmo_jax.cli.main import main

sys.exit(main())
