"""Reads texts with labels of your own from JSON lines and from CSV or TSV files with a header."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from elmo_jax.data.prepare.text import raw_sentences
from elmo_jax.tasks.core.classification import ClassifiedTexts
from elmo_jax.tasks.formats.tables import Quoting, read_records
from elmo_jax.text_files import error_at
from elmo_jax.words import is_blank, split_words

Words = Literal["moses", "spaces"]  # how a text is split into words


def read_texts(
    path: Path,
    text: str,
    label: str,
    split: Callable[[str], list[str]],
    quoting: Quoting = "none",
    annotated: bool = True,
) -> list[ClassifiedTexts]:
    """Reads one example per record, whose field `id`, if there is one, names it.

    Args:
      path: a file of `tables.read_records`.
      text: the field or column of the text, which in JSON may be a list of words.
      label: the field or column of the label, which may be a whole number; spaces around it do not count.
      split: the function that splits a text into words; see `splitter`.
      quoting: whether cells of tab-separated files may be in double quotes.
      annotated: whether each record must have a label.

    Raises:
      UserError: a record is not of this form, or its text has no words.
    """
    examples = []
    for number, record in read_records(path, quoting):
        found, given, name = record.get(text), record.get(label), record.get("id")
        if not annotated and type(given) not in (str, int):
            given = ""
        tokens = found if isinstance(found, list) else split(found) if isinstance(found, str) else None
        is_text = tokens is not None and all(isinstance(t, str) and not is_blank(t) and "\n" not in t for t in tokens)
        if not is_text or type(given) not in (str, int):
            expected = f"a text {text!r} and a label {label!r} (config.data.text and config.data.label name them)"
            raise error_at(path, number, f"expected {expected}, found {str(record)[:80]}")
        if not tokens or (annotated and not str(given).strip()):
            raise error_at(path, number, f"the {'label' if tokens else 'text'} is empty; remove the record")
        examples.append(
            ClassifiedTexts((tokens,), str(given).strip(), id=str(name) if type(name) in (str, int) else "")
        )
    return examples


def splitter(words: Words, language: str = "en") -> Callable[[str], list[str]]:
    """Returns what splits a text into words: Moses ("moses"), or the spaces in it ("spaces")."""
    if words == "spaces":
        return lambda text: split_words(text.replace("\r", " ").replace("\n", " "))
    return lambda text: [word for sentence in raw_sentences(text.splitlines(), language=language) for word in sentence]
