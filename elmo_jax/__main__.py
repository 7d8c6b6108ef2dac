"""The command `elmo-jax`, which is also `python -m elmo_jax`."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Runs the command and returns its exit status; Ctrl-C also ends it while its modules are imported."""
    _open_closed_streams()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    from elmo_jax.cli.main import main as run

    return run()


def _open_closed_streams() -> None:
    """Opens /dev/null as each standard stream that the caller has closed, as some daemons do.

    Otherwise Python has None in its place, and the next file that is opened gets its number and what C++ prints there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number, which is this one
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"elmo-jax: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
