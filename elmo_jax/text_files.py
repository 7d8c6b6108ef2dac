"""Reads text files, which may be compressed and may begin with a byte-order mark, with errors that name file and line.

Lines end with "\\n" or "\\r\\n"; other separators, such as U+2028, are characters of a word. A "\\r" alone is refused.
"""

import bz2
import contextlib
import gzip
import hashlib
import io
import lzma
import os
import sys
import zipfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from elmo_jax.errors import UserError
from elmo_jax.files import AnyPath, in_bucket

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# zstd refuses a window of more than 128 MiB.
_DECOMPRESSORS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".zst": zstd.open}
_BUFFER_BYTES = 1 << 20  # of a file in a bucket
SUFFIXES = (*_DECOMPRESSORS, ".zip")


@contextlib.contextmanager
def open_text(path: AnyPath) -> Iterator[IO[bytes]]:
    """A context with a file to read after a byte-order mark, if it has one; decompresses it as its suffix tells.

    Raises `UserError` for a pipe or a device, or a zip file that has not exactly one text.
    """
    if isinstance(path, Path) and path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path}: is a pipe or a device, and would be read twice; write its text to a file first")
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(path.open("rb"))
        if in_bucket(path):
            file = stack.enter_context(io.BufferedReader(file, _BUFFER_BYTES))
        suffix = path.suffix.lower()
        if suffix == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(file))
            check_zip(archive)
            names = [name for name in archive.namelist() if name.endswith(".txt")] or archive.namelist()
            if len(names) != 1:
                raise UserError(f"{path}: expected one text file in it, found {len(names)}; unpack it, and give one")
            file = stack.enter_context(archive.open(names[0]))
        elif suffix in _DECOMPRESSORS:
            file = stack.enter_context(_DECOMPRESSORS[suffix](file))
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            file.seek(0)
        yield file


def check_zip(archive: zipfile.ZipFile) -> None:
    """Raises `UserError` for a zip file that is encrypted or compressed in a way that Python cannot read."""
    readable = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    for entry in archive.infolist():
        if entry.flag_bits & 1 or entry.compress_type not in readable:
            how = "encrypted" if entry.flag_bits & 1 else f"compressed by method {entry.compress_type}"
            raise UserError(f"{archive.filename}: {entry.filename} is {how}; unpack it, and give what is in it")


def position_on_disk(file: IO[bytes]) -> int:
    """Returns how many bytes of an open file were read, before they were decompressed; 0 for a zip file."""
    try:
        return os.lseek(file.fileno(), 0, os.SEEK_CUR)
    except OSError:  # a file in an archive has no descriptor
        return 0


def without_suffix(path: AnyPath) -> AnyPath:
    """Returns the path that a file would have if it were not compressed."""
    return path.with_suffix("") if path.suffix.lower() in SUFFIXES else path


_DAMAGED = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile, zstd.ZstdError, zlib.error)


@contextlib.contextmanager
def reading(path: AnyPath) -> Iterator[None]:
    """A context that turns the errors of reading a file into a `UserError` that names the file."""
    try:
        yield
    except _DAMAGED as error:
        if "too much memory" in str(error):
            raise UserError(f"{path}: made with a window of over 128 MiB; compress it with zstd --long=27") from None
        kind = path.suffix.removeprefix(".")
        raise UserError(f"{path}: the {kind} file is damaged or cut short ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except Exception as error:  # the clients of object stores raise exceptions of any kind
        if isinstance(error, UserError) or not in_bucket(path):
            raise
        raise UserError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error


class Line(NamedTuple):
    """A line of a file without its end, and its number, which is 1 for the first line."""

    number: int
    text: str


def error_at(path: AnyPath, number: int, message: str) -> UserError:
    """Returns the error about one line of a file; the caller raises it."""
    return UserError(f"{path}, line {number}: {message}")


def read_lines(path: AnyPath) -> Iterator[Line]:
    """Yields every line of a text file, empty ones too.

    Raises `UserError` if it cannot be read, is damaged, is not UTF-8, or has a carriage return inside a line.
    """
    with reading(path), open_text(path) as file:
        for number, data in enumerate(file, 1):
            try:
                text = data.decode()
            except UnicodeDecodeError as error:
                byte = f"byte 0x{data[error.start]:02x}"
                raise error_at(path, number, f"{byte} is not UTF-8; convert the file to UTF-8") from None
            text = text.removesuffix("\n").removesuffix("\r")
            if "\r" in text:
                raise error_at(path, number, "has a carriage return inside; convert the ends of lines to line feeds")
            yield Line(number, text)


def scan_lines(path: AnyPath) -> tuple[int, str]:
    """Returns the number of lines of a text file, and the SHA-256 of the lines. Raises `UserError` as `read_lines`."""
    digest, count = hashlib.sha256(), 0
    for count, text in read_lines(path):  # noqa: B007
        digest.update(f"{text}\n".encode())
    return count, digest.hexdigest()
