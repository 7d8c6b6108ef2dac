"""The errors that the command reports in one line, without a traceback."""


class UserError(Exception):
    """A mistake of the user, with a message of one line that says what is wrong and what to do.

    The command line prints the message, without a traceback, and exits with status 2.
    """


class PeerLost(Exception):
    """Another process of the run is lost, so this one cannot continue; a new launch of all processes can.

    The command line prints the message and exits with status `TRY_AGAIN`.
    """


TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: a restart may succeed, whereas status 2 says that it would not


def exit_status(error: BaseException) -> int:
    """Returns the command's exit status for the exception that ended it."""
    if isinstance(error, UserError):
        return 2
    if isinstance(error, PeerLost):
        return TRY_AGAIN
    return 130 if isinstance(error, KeyboardInterrupt) else 1
