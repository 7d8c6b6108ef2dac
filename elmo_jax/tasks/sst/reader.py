"""Reads the Stanford Sentiment Treebank, trees with a sentiment at every node, and records with labels of your own."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from elmo_jax.data.prepare.text import raw_sentences
from elmo_jax.tasks.core.classification import ClassifiedTexts
from elmo_jax.tasks.formats.lines import Quoting, read_records, unescape
from elmo_jax.text_files import Line, error_at, read_lines
from elmo_jax.words import is_blank, split_words

LABELS = ("very negative", "negative", "neutral", "positive", "very positive")  # the names of the labels 0 to 4

Phrases = Literal["all", "sentences"]  # whether every subtree is an example, or only whole trees
Words = Literal["moses", "spaces"]  # how a text of a record is split into words

# A leaf such as `(2 It)`, the beginning of a larger tree such as `(3`, the end of one, or what is in no tree.
_PIECE = re.compile(r"\([ \t]*([0-4])(?:[ \t]+([^ \t()]+)[ \t]*\)|(?=[ \t]*\())|\)|[^ \t]")
_MALFORMED = "not a tree such as (3 (2 It) …)"


def read(path: Path, phrases: Phrases) -> list[ClassifiedTexts]:
    """Reads a file of trees, one per line, such as `(3 (2 It) (4 (2 is) (4 good)))`.

    Args:
      path: the file.
      phrases: "all" for training, "sentences" for the dev and test sets.

    Returns:
      The phrases of each tree, also equal ones, from the whole tree to its leaves and from left to right. Words are
      those of `lines.unescape`.

    Raises:
      UserError: a line is not a tree, or a label is not 0 to 4.
    """
    examples: list[ClassifiedTexts] = []
    for line in read_lines(path):
        if is_blank(line.text):
            continue
        of_tree = _subtrees(path, line)
        examples += of_tree[:1] if phrases == "sentences" else of_tree
    return examples


def _subtrees(path: Path, line: Line) -> list[ClassifiedTexts]:
    """Returns the subtrees of a line's tree in the order of their opening brackets."""
    leaves: list[str] = []
    nodes: list[list[int]] = []  # the label of each tree, the number of its first leaf, and that after its last one
    inside: list[list[int]] = []  # the trees that are not closed yet
    for match in _PIECE.finditer(line.text):
        label, word = match.groups()
        begins, ends = label and (inside or not nodes), inside and match[0] == ")"
        if not (begins or ends):
            raise error_at(path, line.number, _MALFORMED)
        if label:
            inside.append([int(label), len(leaves), 0])
            nodes.append(inside[-1])
        if word:
            leaves.append(unescape(word))
        if word or not label:
            inside.pop()[2] = len(leaves)
    if inside:
        raise error_at(path, line.number, _MALFORMED)
    return [ClassifiedTexts((leaves[start:end],), LABELS[label]) for label, start, end in nodes]


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
        content, given, name = record.get(text), record.get(label), record.get("id")
        if not annotated and type(given) not in (str, int):
            given = ""
        tokens = content if isinstance(content, list) else split(content) if isinstance(content, str) else None
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
