"""What the command tells in one line, without a traceback."""


class UserError(Exception):
    """A mistake in the input, with one line that says what is wrong and what to do.

    The command line prints the message, without a traceback, and exits with status 2.
    """


class PeerLost(Exception):
    """Another process of the run is gone, so this one cannot go on; the same launch of all of them can.

    The command line prints the message and exits with `TRY_AGAIN`.
    """


TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: what a scheduler starts again, while 2, a user's mistake, stays
