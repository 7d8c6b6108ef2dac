"""Reads the lines of text files that the user gives, which are UTF-8 with or without a byte-order mark."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from pathlib import Path

from elmo_jax.errors import UserError


def scan(path: Path, expected: str = "one sentence per line") -> tuple[int, str]:
    """Returns the number of lines of a file, and the SHA-256 of its content without a byte-order mark.

    Args:
      path: the file.
      expected: the content that is expected, for messages.

    Raises:
      UserError: the file cannot be read, is a pipe or a device, or has a line that is not UTF-8 or has
        a carriage return inside.
    """
    digest, lines = hashlib.sha256(), 0
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"{path}: is a pipe or a device, and would be read twice; write its text to a file first")
        for line in _byte_lines(path):
            lines += 1
            digest.update(line)
            if b"\r" in line.removesuffix(b"\n").removesuffix(b"\r"):
                raise UserError(f"{path}: line {lines}: has a carriage return inside; convert the ends of lines to \\n")
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise UserError(f"{path}: line {lines}: not UTF-8 ({error.reason}); convert the file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); expected {expected}") from None
    return lines, digest.hexdigest()


def text_lines(path: Path) -> Iterator[str]:
    r"""Yields the lines of a file that `scan` has read, without their line breaks, "\n" or "\r\n"."""
    for line in _byte_lines(path):
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode()


def _byte_lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        for number, line in enumerate(file):
            yield line if number else line.removeprefix(codecs.BOM_UTF8)
