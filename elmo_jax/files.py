"""Writes files completely or not at all, in local folders, shared folders and buckets (`gs://…`)."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from etils import epath

from elmo_jax.errors import UserError
from elmo_jax.interrupts import temporary

_URL = re.compile(r"[A-Za-z][\w+.-]*://|(https?|ftp|file|gs|s3):/")  # pathlib makes one slash of two
HUB = "hf:"  # begins the name of a biLM on the Hugging Face Hub, which `checkpoints.hub` reads
_NAMED = re.compile(r"(\w[\w.-]{0,63})=(.+)", re.DOTALL)
_COMMA = re.compile(r",(?![^\[\]]*\])")  # a comma that is not in brackets, where titles of articles may have some

# The versions of the sealed files; that of a kind must be increased when its content changes.
FORMAT_VERSIONS = {"corpus.json": 2, "config.json": 2, "inputs.json": 2, "manifest.json": 1, "result.json": 1}
Covered = Callable[[dict[str, Any]], dict[str, Any]]
AnyPath: TypeAlias = Path | epath.Path  # a path on this machine, or in a bucket


def parse_path(path: str | os.PathLike[str]) -> epath.Path:
    """Returns a path that the user gave, in an argument, a setting or Python, as one that can be read and written.

    Every such path goes through this function, or through `local`, `anywhere`, `absolute` or `listed`, which call it.
    It is on this machine, and may begin with `~` or `~user`, or in a bucket (`gs://…`).
    """
    text = os.fspath(path)
    if not text.strip() or "\0" in text:
        raise UserError(f"expected a path, got {text!r}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
        raise UserError(f"{text!a}: the locale's encoding is {encoding}, not UTF-8; set PYTHONUTF8=1") from None
    if text.startswith(HUB):
        raise UserError(f"{text}: names a biLM on the Hub; expected a path here (a file of this name is ./{text})")
    if not _URL.match(text):
        expanded = os.path.expanduser(text) if text.startswith("~") else text
        if expanded.startswith("~"):
            user = text.split("/")[0][1:]
            raise UserError(f"{text!r}: there is no user {user!r}; a name that begins with ~ is ./~…")
        return epath.Path(Path(expanded))  # a text with "://" would be a URL to it
    if not re.match(r"gs://[^/]", text):
        expected = "a path on this machine or in a bucket, gs://…"
        raise UserError(f"expected {expected}, got {text!r}; of a URL, download the file first")
    import fsspec

    try:
        fsspec.get_filesystem_class("gs")
    except (ImportError, ValueError) as error:
        raise UserError(f"{text}: cannot be reached: {error} (for gs://: pip install 'elmo_jax[gcs]')") from None
    # Orbax writes through TensorStore, unseen by fsspec, whose cached listings would therefore lack those files.
    for protocol in ("gs", "gcs"):
        fsspec.config.conf.setdefault(protocol, {})["use_listings_cache"] = False
    return epath.Path(text)


def local(path: str | os.PathLike[str]) -> Path:
    """Returns a path on this machine; raises `UserError` as `parse_path`, and for a path in a bucket."""
    parsed = parse_path(path)
    if in_bucket(parsed):
        raise UserError(f"expected a path on this machine, got {os.fspath(path)!r}")
    return Path(parsed)


def anywhere(path: str | os.PathLike[str]) -> AnyPath:
    """Returns a path as `parse_path`, of `pathlib` if it is on this machine; raises `UserError` as `parse_path`."""
    parsed = parse_path(path)
    return parsed if in_bucket(parsed) else Path(parsed)


def named(text: str) -> tuple[str, str]:
    """Divides `NAME=SOURCE` into both; the name is empty for a source without one, and for files that exist."""
    match = _NAMED.fullmatch(text)
    if match is None or os.path.exists(local(text)) or glob.glob(str(local(text))):
        return "", text
    return match[1], match[2]


def absolute(path: str | os.PathLike[str]) -> epath.Path:
    """Returns the absolute path; raises `UserError` as `parse_path`."""
    parsed = parse_path(path)
    return parsed if in_bucket(parsed) else epath.Path(os.path.abspath(parsed))


def listed(paths: str) -> list[str]:
    """Returns the paths in a text of several, separated by commas that are not in brackets (a slice or titles)."""
    parts = [paths] if paths.strip() and os.path.exists(local(paths)) else _COMMA.split(paths)
    return [name for name in map(str.strip, parts) if name]


def short_name(source: str) -> str:
    """Returns the last part of a source's path, without what belongs to the machine; other sources as they are."""
    return source if source.lower().startswith("tfds:") else Path(source).name


def in_bucket(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is in an object store, whose objects appear whole and cannot be renamed or appended to."""
    return "://" in os.fspath(path)


def make_folder_of(path: AnyPath) -> None:
    """Makes the folder that a file is to be written in, or raises `UserError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: the folder cannot be made ({error.strerror}); choose another path") from None


def write_text(path: AnyPath, text: str) -> None:
    """Writes a text file in UTF-8, completely or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: AnyPath, value: Any) -> None:
    """Writes a JSON file, completely or not at all."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_checksummed_json(path: AnyPath, value: dict[str, Any], covered: Covered = dict) -> None:
    """Writes a JSON object with a seal, the SHA-256 of the part of it that `covered` returns, by default all of it."""
    version = FORMAT_VERSIONS.get(path.name, 1)
    write_json(path, {**value, "format_version": version, "sha256": digest_of(covered(value))})


def read_checksummed_json(path: AnyPath, remedy: str, covered: Covered = dict) -> dict[str, Any]:
    """Returns the object that `write_checksummed_json` wrote; since the seal is verified, no key needs a further check.

    Raises:
      FileNotFoundError: there is no such file.
      UserError: the file is damaged, was edited, or was written by another version of elmo_jax; `remedy` ends the
        message and says what to do.
    """
    content, expected = path.read_bytes(), FORMAT_VERSIONS.get(path.name, 1)
    try:
        value: dict[str, Any] = json.loads(content)
        version, seal = value.pop("format_version"), value.pop("sha256")
        if version == expected and seal == digest_of(covered(value)):
            return value
        reason = "damaged or edited" if version == expected else "written by another version of elmo_jax"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        reason = "damaged, or written by another version or program"
    raise UserError(f"{path}: {reason}; {remedy}")


def digest_of(value: Any) -> str:
    """Returns the SHA-256 (hexadecimal) of a JSON value, the same before it is written and after it is read."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write_bytes(path: AnyPath, content: bytes) -> None:
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
def atomic_file(path: AnyPath) -> Iterator[Path]:
    """Yields the path of a temporary file next to `path`, and renames the file to `path` at the end.

    After an exception, `path` is unchanged and the temporary file is deleted. The content is flushed to the disk before
    the file is renamed, so that even a loss of power cannot leave a partial file. The last of several writers wins.
    """
    path = Path(os.path.realpath(path))  # a link stays, and the file that it names is replaced
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with temporary(os.fspath(partial)):
        with _named(path):
            # O_EXCL: never through a link; `tempfile` would make a file that only its owner can read.
            os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            yield partial
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        partial.replace(path)


@contextlib.contextmanager
def writing(path: AnyPath) -> Iterator[None]:
    """A context that turns an error of the file system, such as a full disk, into a `UserError` that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or ' '.join(str(error).split())})") from error


def shown_bytes(size: float) -> str:
    """Returns a number of bytes for a person to read."""
    unit, name = (1e9, "GB") if size >= 1e9 else (1e6, "MB") if size >= 1e6 else (1e3, "kB")
    return f"{size / unit:,.1f} {name}"


def check_free_space(folder: Path, size: int, what: str) -> None:
    """Prints how many bytes `what` takes in a folder, which may not exist; raises `UserError` if the disk has fewer."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    line = f"{folder}: {what}: {shown_bytes(size)}"
    if size > free:
        raise UserError(f"{line}, and the disk has {shown_bytes(free)} free; choose another disk or less text")
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yields an empty folder for temporary files, which is deleted at the end."""
    folder = tempfile.mkdtemp(prefix="elmo-jax-")
    with temporary(folder):
        yield Path(folder)


@contextlib.contextmanager
def _named(path: AnyPath) -> Iterator[None]:
    """Adds the path to an error of writing, which does not say in which file a disk was full."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


@contextlib.contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Yields an empty temporary folder next to `out`, and renames it to `out` at the end.

    After an exception, and when a signal ends a command (`interrupts`), the temporary folder is deleted. The remains of
    a killed process are deleted by the next process that makes `out`. Raises `UserError` if another process is making
    `out`, or it is the current folder or that of a disk.
    """
    out = Path(os.path.realpath(out))  # a link stays, and the folder that it names is made
    if out == Path.cwd() or os.path.ismount(out):
        raise UserError(f"{out}: cannot be replaced, being the current folder or that of a disk; name one to be made")
    partial = out.parent / f".{out.name}.partial"
    partial.mkdir(parents=True, exist_ok=True)
    lock = os.open(partial, os.O_RDONLY)
    try:
        if try_flock(lock) is False:
            raise UserError(f"{out}: another process is preparing it; wait for it to end")
        with temporary(os.fspath(partial)):
            for entry in partial.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            yield partial
            partial.rename(out)
    finally:
        os.close(lock)


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """A context that one process at a time is in; others wait for it to end, unless the file system has no `flock`."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if try_flock(lock) is False:
            print(f"{path.parent}: waiting for another process that writes there", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


# What `flock` says where there are no locks: Lustre (ENOSYS), NFS without lockd (ENOLCK), NFS for a folder (EBADF), …
_NO_FLOCK = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK, errno.EBADF}


def try_flock(descriptor: int) -> bool | None:
    """Takes the lock of an open file, and returns whether this process has it; None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_FLOCK:
            return None
        raise
    return True
