"""Reads the files of the tasks line by line, with errors that name the file and the line.

A file may be compressed (see `text_files`). It is UTF-8, with or without a byte-order mark. Lines end with "\\n" or
"\\r\\n"; other separators, such as U+2028, are characters of a word, and a "\\r" alone is refused.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from elmo_jax.errors import UserError
from elmo_jax.text_files import open_text, reading
from elmo_jax.words import is_blank, split_words


class Line(NamedTuple):
    """A line of a file without its end, and its number, which is 1 for the first line."""

    number: int
    text: str


def error_at(path: Path, number: int, message: str) -> UserError:
    """Returns the error about one line of a file; the caller raises it."""
    return UserError(f"{path}, line {number}: {message}")


def read_lines(path: Path) -> Iterator[Line]:
    """Yields every line of a text file, blank ones too.

    Raises:
      UserError: the file cannot be read, is damaged, has bytes that are not UTF-8, or has a carriage return inside a
        line.
    """
    with reading(path), open_text(path) as file:
        for number, data in enumerate(file, 1):
            try:
                text = data.decode()
            except UnicodeDecodeError as error:
                byte = data[error.start]
                message = f"byte 0x{byte:02x} is not UTF-8; convert the file to UTF-8"
                raise error_at(path, number, message) from None
            text = text.removesuffix("\n").removesuffix("\r")
            if "\r" in text:
                raise error_at(path, number, "has a carriage return inside; convert the ends of lines to line feeds")
            yield Line(number, text)


def read_json(path: Path, text: str, number: int) -> Any:
    """Returns the value of a JSON text, whose first line is the line `number` of the file.

    Raises:
      UserError: it is not JSON, is nested too deeply, or has a number that is too long or half of a surrogate pair.
    """
    try:
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        message = f"not JSON ({error.msg}, character {error.colno})"
        raise error_at(path, number + error.lineno - 1, message) from None
    except UnicodeEncodeError:
        raise error_at(path, number, "has a \\u escape that is half of a surrogate pair, and no character") from None
    except (ValueError, RecursionError) as error:
        raise error_at(path, number, f"not JSON that can be read ({' '.join(str(error).split())[:80]})") from None
    return value


def blocks(path: Path, separates: Callable[[str], bool] = is_blank) -> Iterator[list[Line]]:
    """Yields groups of consecutive lines, never an empty one; lines for which `separates` is true are between them.

    Raises:
      UserError: as `read_lines`.
    """
    block: list[Line] = []
    for line in read_lines(path):
        if not separates(line.text):
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def cells(text: str) -> list[str]:
    """Splits a line into its columns.

    Columns are separated by single tabs where the line has a tab, so that a cell may be empty or contain spaces, and
    else by any number of spaces.
    """
    return text.split("\t") if "\t" in text else split_words(text)
