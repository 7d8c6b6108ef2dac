"""Reads the parts of task files: groups of lines, columns, JSON, escapes, and records of named fields."""

import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from elmo_jax.tasks.core.task import report
from elmo_jax.text_files import Line, error_at, read_lines, without_suffix
from elmo_jax.words import is_blank, split_words

# The escapes of the Penn Treebank, which stand for characters that its own notation needs.
_ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}
_BACKSLASH = re.compile(r"\\([/*])")


def read_json(path: Path, text: str, number: int) -> Any:
    """Returns the value of a JSON text, whose first line is the line `number` of the file.

    It may have no half of a surrogate pair, and no object with two fields of one name.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except json.JSONDecodeError as error:
        message = f"not JSON ({error.msg}, character {error.colno})"
        raise error_at(path, number + error.lineno - 1, message) from None
    except UnicodeEncodeError:
        raise error_at(path, number, "has a \\u escape that is half of a surrogate pair, not a character") from None
    except (ValueError, RecursionError) as error:
        raise error_at(path, number, f"not JSON that can be read ({' '.join(str(error).split())[:80]})") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(f"an object has two fields of one name: {', '.join(name for name, _ in pairs)}")
    return fields


def blocks(path: Path, separates: Callable[[str], bool] = is_blank) -> Iterator[list[Line]]:
    """Yields groups of consecutive lines, never an empty one; lines for which `separates` is true are between them."""
    for between, lines in itertools.groupby(read_lines(path), lambda line: separates(line.text)):
        if not between:
            yield list(lines)


def cells(text: str) -> list[str]:
    """Splits a line into its columns: at single tabs if it has a tab, and else at any number of spaces."""
    return text.split("\t") if "\t" in text else split_words(text)


def rows_of(path: Path, lines: Sequence[Line], fewest: int) -> list[list[str]]:
    """Splits the lines of a sentence into their columns, equally many in each and at least `fewest`."""
    rows = [cells(line.text) for line in lines]
    for line, row in zip(lines, rows, strict=True):
        if len(row) < fewest:
            raise error_at(path, line.number, f"expected at least {fewest} columns, found {len(row)}")
        if len(row) != len(rows[0]):
            expected = f"{len(rows[0])} columns, as in the first line of the sentence"
            raise error_at(path, line.number, f"expected {expected}, found {len(row)}")
    return rows


def unescape(word: str) -> str:
    r"""Returns the text that a leaf of a tree of the Penn Treebank stands for.

    Bracket names (`-LRB-`, in small letters too), quotes and the backslash before `/` and `*` are mapped. Quotes become
    `"`, which is how the text that biLMs are trained on (1 Billion Word) has them.
    """
    return _ESCAPES.get(word.upper()) or without_backslashes(word)


def without_backslashes(word: str) -> str:
    r"""Returns a word with `/` and `*` in place of `\/` and `\*`."""
    return _BACKSLASH.sub(r"\1", word)


Quoting = Literal["none", "csv"]  # of tab-separated files; those with commas always have quotes
_ESCAPED = re.compile(r'"([^"]|"")*""([^"]|"")*"')
JSON_LINES = (".jsonl", ".ndjson")
SUFFIXES = (*JSON_LINES, ".csv", ".tsv")


def suffix_of(source: str | Path) -> str:
    """Returns the ending of a file's name in lower case, before that of a compression."""
    return without_suffix(Path(source)).suffix.lower()


def read_records(
    path: Path, quoting: Quoting, columns: Sequence[str] = (), header: Collection[str] = ()
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the number of the first line of each record, and its fields by name.

    Args:
      path: JSON lines (`.jsonl`, `.ndjson`), a table with commas (`.csv`), or one with tabs (any other name).
      quoting: "csv" if cells of a table with tabs may be in double quotes, with double quotes inside them doubled.
      columns: the names of the columns of a table whose first row has none of `header` or, by default, of them; without
        any, the first row always has the names.
      header: the names by which a first row is known to have names.
    """
    suffix = suffix_of(path)
    if suffix in JSON_LINES:
        for number, text in read_lines(path):
            if not is_blank(text):
                record = read_json(path, text, number)
                if not isinstance(record, dict):
                    raise error_at(path, number, f"expected a JSON object, found {text[:40]!r}")
                yield number, record
        return
    names: list[str] = []
    escaped = 0
    for number, row in _rows(path, "," if suffix == ".csv" else "\t", suffix == ".csv" or quoting == "csv"):
        if not names:
            has_names = not columns or not {cell.strip() for cell in row}.isdisjoint(header or columns)
            names = [cell.strip() for cell in row] if has_names else list(columns)
            name, uses = Counter(names).most_common(1)[0]
            if uses > 1:
                raise error_at(path, number, f"two columns have the name {name!r}; rename one")
            if has_names:
                continue
        if len(row) != len(names):
            advice = "; a text with commas needs double quotes around it" if suffix == ".csv" else " separated by tabs"
            raise error_at(path, number, f"expected {len(names)} columns, found {len(row)}{advice}")
        escaped += quoting == "none" and suffix != ".csv" and any(map(_ESCAPED.fullmatch, row))
        yield number, dict(zip(names, row, strict=True))
    report(path, {"rows with doubled quotes, read as they are; config.data.quoting=csv would undo them": escaped})


def _rows(path: Path, delimiter: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(2**31 - 1)
    lines = (f"{line.text}\n" for line in read_lines(path))
    rows, first = csv.reader(lines, delimiter=delimiter, quoting=0 if quoted else csv.QUOTE_NONE, strict=True), 1
    try:
        for row in rows:
            if not all(map(is_blank, row)):
                yield first, row
            first = rows.line_num + 1
    except csv.Error as error:
        raise error_at(path, first, f"not a row of quoted cells ({error})") from None
