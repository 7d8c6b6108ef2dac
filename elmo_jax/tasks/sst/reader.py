"""Reads the Stanford Sentiment Treebank: bracketed trees with a sentiment at every node."""

import dataclasses
import re
from pathlib import Path
from typing import Literal

from elmo_jax.tasks.core.classification import ClassifiedTexts
from elmo_jax.tasks.formats.lines import unescape
from elmo_jax.text_files import Line, error_at, read_lines
from elmo_jax.words import is_blank

LABELS = ("very negative", "negative", "neutral", "positive", "very positive")  # the names of the labels 0 to 4

Phrases = Literal["all", "sentences"]  # whether every subtree is an example, or only whole trees

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
        found = _subtrees(path, line)
        examples += found[:1] if phrases == "sentences" else found
    return examples


@dataclasses.dataclass
class _Node:
    """A tree whose words are the leaves from `start` to before `end`."""

    label: int
    start: int
    end: int = 0


def _subtrees(path: Path, line: Line) -> list[ClassifiedTexts]:
    """Returns the subtrees of a line's tree in the order of their opening brackets."""
    leaves: list[str] = []
    nodes: list[_Node] = []
    inside: list[_Node] = []  # the trees that are not closed yet
    for match in _PIECE.finditer(line.text):
        label, word = match.groups()
        begins, ends = label and (inside or not nodes), inside and match[0] == ")"
        if not (begins or ends):
            raise error_at(path, line.number, _MALFORMED)
        if label:
            inside.append(_Node(int(label), len(leaves)))
            nodes.append(inside[-1])
        if word:
            leaves.append(unescape(word))
        if word or not label:
            inside.pop().end = len(leaves)
    if inside:
        raise error_at(path, line.number, _MALFORMED)
    return [ClassifiedTexts((leaves[node.start : node.end],), LABELS[node.label]) for node in nodes]
