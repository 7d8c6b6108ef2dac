"""`python -m elmo_jax`, the same as `elmo-jax`."""

import sys

from elmo_jax.cli.main import main

sys.exit(main())
