"""What the command tells in one line, without a traceback."""


class UserError(Exception):
    """A mistake in the input, with one line that says what is wrong and what to do.

    The command line prints the message, without a traceback, and exits with status 2.
    """


class PeerLost(Exception):
    """Another process of the run is gone, so this one cannot go on; the same launch of all of them can.

    The command line prints the message and exits with status `TRY_AGAIN`.
    """


TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: start me again, where 2 says that it would be no use


def exit_status(error: BaseException) -> int:
    """The command's exit status for what ended it."""
    if isinstance(error, UserError):
        return 2
    if isinstance(error, PeerLost):
        return TRY_AGAIN
    return 130 if isinstance(error, KeyboardInterrupt) else 1
