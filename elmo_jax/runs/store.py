"""Turns the errors of a bucket's client into one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from etils import epath

from elmo_jax.errors import UserError
from elmo_jax.files import in_bucket


@contextlib.contextmanager
def store_errors(workdir: epath.Path) -> Iterator[None]:
    """A context that turns the errors of a bucket's client, and those of the file system, into a `UserError`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the clients of object stores raise exceptions of any kind
        if in_bucket(workdir):
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise UserError(
                f"{workdir}: cannot be read and written ({reason}); is there such a bucket, and may you write to it?"
            ) from error
        if isinstance(error, OSError):
            reason = error.strerror or " ".join(str(error).split())[:200]
            raise UserError(f"{workdir}: cannot be read and written ({reason})") from error
        raise
