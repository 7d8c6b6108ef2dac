"""Writes files completely or not at all, in local folders, shared folders and buckets (`gs://…`)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from etils import epath

from elmo_jax.errors import UserError
from elmo_jax.interrupts import temporary


def place(path: str | os.PathLike[str]) -> epath.Path:
    """Returns a path given by the user as one that can be read and written.

    Raises:
      UserError: the path is in a bucket, and the package that reads such buckets is not installed.
    """
    if "\0" in os.fspath(path) or not os.fspath(path):
        raise UserError(f"{os.fspath(path)!r}: not a path")
    if in_bucket(path):
        if os.fspath(path).startswith("file:"):
            raise UserError(f"{os.fspath(path)}: give the path itself, without file://")
        import fsspec

        try:
            fsspec.get_filesystem_class(os.fspath(path).split("://")[0])
        except (ImportError, ValueError) as error:
            hint = " (for gs://: pip install 'elmo_jax[gcs]')"
            raise UserError(f"{os.fspath(path)}: cannot be reached: {error}{hint}") from None
        # Orbax writes through TensorStore, unseen by fsspec, whose cached listings would therefore lack those files.
        for protocol in ("gs", "gcs"):
            fsspec.config.conf.setdefault(protocol, {})["use_listings_cache"] = False
    return epath.Path(path)


def absolute(path: str | os.PathLike[str]) -> epath.Path:
    """Returns the absolute path; a path in a bucket already is absolute.

    Raises:
      UserError: the path is empty, which would be the current folder, or is in a bucket that cannot be reached.
    """
    if not os.fspath(path).strip():
        raise UserError("the name of a file or folder is empty; name one")
    return place(path if in_bucket(path) else os.path.abspath(path))


def in_bucket(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is in an object store, whose objects appear whole and cannot be renamed or appended to."""
    return "://" in os.fspath(path)


def make_folder_of(path: epath.Path | Path) -> None:
    """Makes the folder that a file is to be written in.

    Raises:
      UserError: the folder cannot be made, because a file is in the way or it is not permitted.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: the folder cannot be made ({error.strerror}); choose another path") from None


def write_text(path: epath.Path | Path, text: str) -> None:
    """Writes a text file in UTF-8, completely or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: epath.Path | Path, value: Any) -> None:
    """Writes a JSON file, completely or not at all."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def digest_of(value: Any) -> str:
    """Returns the SHA-256 (hexadecimal) of a JSON value, the same before it is written and after it is read."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write_bytes(path: epath.Path | Path, content: bytes | memoryview) -> None:
    """Writes a file, completely or not at all."""
    if in_bucket(path):
        path.write_bytes(content)  # an object of a store appears whole, without a temporary file
        return
    if path.exists() and not path.is_file():  # a device such as /dev/null, or a pipe, which must not be replaced
        with _named(path), open(path, "wb") as file:
            file.write(content)
        return
    with atomic_file(path) as partial:
        partial.write_bytes(content)


@contextlib.contextmanager
def atomic_file(path: epath.Path | Path) -> Iterator[Path]:
    """Yields the path of a temporary file beside `path`, and renames the file to `path` at the end.

    After an exception, `path` is unchanged and the temporary file is deleted. The content is flushed to the disk before
    the file is renamed, so that even a loss of power cannot leave a partial file.
    """
    path = Path(os.path.realpath(path))  # a link stays, and the file that it names is replaced
    partial = path.with_name(f".{path.name}.tmp")
    with temporary(os.fspath(partial)):
        with _named(path):
            yield partial
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        partial.replace(path)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yields an empty folder for temporary files, which is deleted at the end."""
    folder = tempfile.mkdtemp(prefix="elmo-jax-")
    with temporary(folder):
        yield Path(folder)


@contextlib.contextmanager
def _named(path: epath.Path | Path) -> Iterator[None]:
    """Adds the path to an error of writing, which does not say in which file a disk was full."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


@contextlib.contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Yields an empty temporary folder beside `out`, and renames it to `out` at the end.

    After an exception, Ctrl-C or SIGTERM the temporary folder is deleted. The remains of a killed process are deleted
    by the next process that makes `out`.

    Raises:
      UserError: another process is making `out`, or it is the current folder or that of a disk.
    """
    out = Path(os.path.realpath(out))  # a link stays, and the folder that it names is made
    if out == Path.cwd() or os.path.ismount(out):
        raise UserError(
            f"{out}: cannot be replaced, being the current folder or that of a disk; name a folder to be made"
        )
    partial = out.parent / f".{out.name}.partial"
    partial.mkdir(parents=True, exist_ok=True)
    lock = os.open(partial, os.O_RDONLY)
    try:
        try:
            # The operating system releases the lock when its owner ends, even if it is killed.
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
def one_at_a_time(path: Path) -> Iterator[None]:
    """A context that one process at a time is in; others wait for it to end.

    In a file system without `flock`, nobody waits.

    Args:
      path: the file to lock, which is made if it is absent, and stays.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{path.parent}: waiting for another process that writes there", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if not lacks_flock(error):
                raise
        yield
    finally:
        os.close(lock)


def lacks_flock(error: OSError) -> bool:
    """Returns whether an error of `flock` says that the file system has no locks."""
    return error.errno in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK)


@contextlib.contextmanager
def _sigterm_as_exception() -> Iterator[None]:
    """Raises `SystemExit` on SIGTERM, so that context managers and `finally` clauses clean up."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
