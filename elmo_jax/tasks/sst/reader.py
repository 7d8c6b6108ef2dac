"""Reads the Stanford Sentiment Treebank: bracketed trees with a sentiment at every node."""

import dataclasses
import re
from pathlib import Path
from typing import Literal

from elmo_jax.tasks.core.classification import ClassifiedTexts
from elmo_jax.tasks.formats.penn import Escapes, unescape
from elmo_jax.text_files import Line, error_at, read_lines
from elmo_jax.words import is_blank

LABELS = ("very negative", "negative", "neutral", "positive", "very positive")  # the names of the labels 0 to 4

Phrases = Literal["all", "sentences"]  # whether every subtree is an example, or only whole trees

_DIGITS = ("0", "1", "2", "3", "4")
_PIECE = re.compile(r"[()]|[^ \t()]+")


def read(path: Path, phrases: Phrases, escapes: Escapes = "map") -> list[ClassifiedTexts]:
    """Reads a file of trees, one per line, such as `(3 (2 It) (4 (2 is) (4 good)))`.

    Args:
      path: the file.
      phrases: "all" for training, "sentences" for the dev and test sets.
      escapes: whether escapes such as `-LRB-` are replaced by their characters; see `penn.unescape`.

    Returns:
      The phrases of each tree, also equal ones, from the whole tree to its leaves and from left to right.

    Raises:
      UserError: a line is not a tree, or a label is not 0 to 4.
    """
    examples: list[ClassifiedTexts] = []
    for line in read_lines(path):
        if is_blank(line.text):
            continue
        found = _subtrees(path, line, escapes)
        examples += found[:1] if phrases == "sentences" else found
    return examples


@dataclasses.dataclass
class _Node:
    """A tree that is being read; its words are the leaves from `start` to before `end`."""

    start: int
    end: int = 0
    label: int = -1
    is_leaf: bool = False


def _subtrees(path: Path, line: Line, escapes: Escapes) -> list[ClassifiedTexts]:
    """Returns the subtrees of a line's tree in the order of their opening brackets."""
    leaves: list[str] = []
    nodes: list[_Node] = []
    inside: list[_Node] = []  # the trees that are not closed yet
    for match in _PIECE.finditer(line.text):
        piece = match.group()
        node = inside[-1] if inside else None
        problem = _problem(node, piece, len(nodes), len(leaves))
        if problem:
            message = f"character {match.start() + 1}: expected {problem}, found {piece!r}"
            raise error_at(path, line.number, message)
        if node and node.label < 0:
            node.label = int(piece)
        elif piece == "(":
            nodes.append(_Node(start=len(leaves)))
            inside.append(nodes[-1])
        elif piece == ")":
            inside.pop().end = len(leaves)
        else:
            leaves.append(unescape(piece) if escapes == "map" else piece)
            inside[-1].is_leaf = True
    if inside:
        raise error_at(path, line.number, f"the line ends inside the tree; unclosed brackets: {len(inside)}")
    return [ClassifiedTexts((leaves[node.start : node.end],), LABELS[node.label]) for node in nodes]


def _problem(node: _Node | None, piece: str, nodes: int, leaves: int) -> str:
    """Returns what was expected instead of a piece of the line; empty if the piece is allowed there.

    The node is the innermost tree that is not closed yet; `nodes` trees were opened and `leaves` words read so far.
    """
    if node is None:
        if nodes:
            return "the end of the line after the tree"
        return "" if piece == "(" else "'('"
    if node.label < 0:
        return "" if piece in _DIGITS else "a label from 0 to 4"
    if node.is_leaf:
        return "" if piece == ")" else "')' after the word"
    if leaves == node.start:
        return "a word or a subtree" if piece == ")" else ""
    return "" if piece in ("(", ")") else "'(' or ')'"
