"""Reads the lines of text files that the user gives, which are UTF-8 with or without a byte-order mark."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from elmo_jax.errors import UserError
from elmo_jax.text_files import open_text, reading


def scan(path: Path) -> tuple[int, str]:
    """Returns the number of lines of a file, and the SHA-256 of its content without a byte-order mark.

    Raises:
      UserError: the file cannot be read, is a pipe or a device, or has a line that is not UTF-8 or has
        a carriage return inside.
    """
    digest, lines = hashlib.sha256(), 0
    for line in _byte_lines(path):
        lines += 1
        digest.update(line)
        if b"\r" in line.removesuffix(b"\n").removesuffix(b"\r"):
            raise UserError(f"{path}: line {lines}: has a carriage return inside; convert the ends of lines to \\n")
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: line {lines}: not UTF-8 ({error.reason}); convert the file") from None
    return lines, digest.hexdigest()


def text_lines(path: Path) -> Iterator[str]:
    r"""Yields the lines of a file that `scan` has read, without their line breaks, "\n" or "\r\n"."""
    for line in _byte_lines(path):
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode()


def _byte_lines(path: Path) -> Iterator[bytes]:
    with reading(path), open_text(path) as file:
        yield from file
