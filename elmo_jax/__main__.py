"""The command `elmo-jax`, which is also `python -m elmo_jax`."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Runs the command and returns its exit status; Ctrl-C also ends it while its modules are imported."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    from elmo_jax.cli.main import main as run

    return run()


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"elmo-jax: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
