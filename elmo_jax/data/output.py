"""A folder that appears whole or not at all."""

import contextlib
import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from elmo_jax.errors import UserError


@contextlib.contextmanager
def folder_made_at_once(out: Path) -> Iterator[Path]:
    """Give a temporary folder beside `out` to fill, and rename it to `out` at the end.

    After an exception, Ctrl-C or SIGTERM nothing is left. What a killed process left is removed by the
    next one that makes `out`.

    Raises:
        UserError: another process is making `out`.
    """
    partial = out.parent / f".{out.name}.partial"
    partial.mkdir(parents=True, exist_ok=True)
    lock = os.open(partial, os.O_RDONLY)
    try:
        try:
            # The system releases the lock when its owner dies, however that happens.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{out}: another process is preparing it; wait for it to end") from None
        try:
            for entry in partial.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            with _sigterm_as_exception():
                yield partial
                partial.rename(out)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    finally:
        os.close(lock)


@contextlib.contextmanager
def _sigterm_as_exception() -> Iterator[None]:
    """Raise SystemExit on SIGTERM, so that what is open is cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
