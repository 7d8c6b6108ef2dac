"""The one exception a user's mistake raises."""


class UserError(Exception):
    """A mistake in the input, with one line that says what is wrong and what to do.

    The command line prints the message, without a traceback, and exits with status 2.
    """
