"""Reads the parts of task files: groups of lines, columns, JSON and escapes; `text_files` reads lines themselves."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from elmo_jax.text_files import Line, error_at, read_lines
from elmo_jax.words import is_blank, split_words

# The escapes of the Penn Treebank, which stand for characters that its own notation needs.
_ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}
_BACKSLASH = re.compile(r"\\([/*])")


def read_json(path: Path, text: str, number: int) -> Any:
    """Returns the value of a JSON text, whose first line is the line `number` of the file.

    Raises:
      UserError: it is not JSON, is nested too deeply, or has a number that is too long, half of a surrogate pair, or an
        object with two fields of one name.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        message = f"not JSON ({error.msg}, character {error.colno})"
        raise error_at(path, number + error.lineno - 1, message) from None
    except UnicodeEncodeError:
        raise error_at(path, number, "has a \\u escape that is half of a surrogate pair, not a character") from None
    except (ValueError, RecursionError) as error:
        raise error_at(path, number, f"not JSON that can be read ({' '.join(str(error).split())[:80]})") from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(f"an object has two fields of one name: {', '.join(name for name, _ in pairs)}")
    return fields


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


def unescape(word: str) -> str:
    r"""Returns the text that a leaf of a tree of the Penn Treebank stands for.

    Bracket names (`-LRB-`, in small letters too), quotes and the backslash before `/` and `*` are mapped. Quotes become
    `"`, which is how the text that biLMs are trained on (1 Billion Word) has them.
    """
    return _ESCAPES.get(word.upper()) or without_backslashes(word)


def without_backslashes(word: str) -> str:
    r"""Returns a word with `/` and `*` in place of `\/` and `\*`."""
    return _BACKSLASH.sub(r"\1", word)
