"""Reads texts with labels of your own from JSON lines and from CSV files with a header."""

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from elmo_jax.tasks.core.classification import ClassifiedTexts
from elmo_jax.tasks.formats.lines import read_json
from elmo_jax.text_files import error_at, open_text, read_lines, reading, without_suffix
from elmo_jax.words import is_blank, split_words

Words = Literal["moses", "spaces"]  # how a text is split into words

SUFFIXES = (".jsonl", ".csv", ".tsv")


def read_records(path: Path, text: str, label: str, words: Words) -> list[ClassifiedTexts]:
    """Reads one example per record.

    Args:
      path: a `.jsonl`, `.csv` or `.tsv` file, whose names may end in a suffix of compression too. A `.csv` or `.tsv`
        file begins with the names of its columns.
      text: the field or column of the text, which in JSON may be a list of words.
      label: the field or column of the label, which may be a number.
      words: "moses" for running text, "spaces" for text whose words are separated by spaces.

    Raises:
      UserError: a record is not of this form, or its text has no words.
    """
    split = _at_spaces if words == "spaces" else _moses()
    suffix = without_suffix(path).suffix.lower()
    examples = []
    for number, record in _json_lines(path) if suffix == ".jsonl" else _rows(path, "\t" if suffix == ".tsv" else ","):
        found = [record.get(name) for name in (text, label)] if isinstance(record, dict) else [None, None]
        tokens = found[0] if isinstance(found[0], list) else split(found[0]) if isinstance(found[0], str) else None
        is_text = tokens is not None and all(isinstance(t, str) and not is_blank(t) and "\n" not in t for t in tokens)
        if not is_text or type(found[1]) not in (str, int):
            expected = f"a text {text!r} and a label {label!r} (config.data.text and config.data.label name them)"
            raise error_at(path, number, f"expected {expected}")
        if not tokens or is_blank(str(found[1])):
            raise error_at(path, number, f"the {'label' if tokens else 'text'} is empty; remove the record")
        assert tokens is not None
        examples.append(ClassifiedTexts((tokens,), str(found[1])))
    return examples


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    return ((n, read_json(path, text, n)) for n, text in read_lines(path) if not is_blank(text))


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, Any]]:
    with reading(path), open_text(path) as file, io.TextIOWrapper(file, "utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter=delimiter, strict=True)
        try:
            for row in rows:
                yield rows.line_num, row
        except csv.Error as error:
            raise error_at(path, rows.line_num + 1, f"not CSV ({error})") from None
        except UnicodeDecodeError as error:
            raise error_at(path, rows.line_num + 1, f"not UTF-8 ({error.reason}); convert the file") from None


def _at_spaces(text: str) -> list[str]:
    return split_words(text.replace("\r", " ").replace("\n", " "))


def _moses() -> Callable[[str], list[str]]:
    from elmo_jax.data.prepare.text import raw_sentences

    return lambda text: [word for sentence in raw_sentences(text.splitlines()) for word in sentence]
