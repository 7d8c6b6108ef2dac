"""Computes the scores of semantic role labelling as srl-eval.pl does, the script of the CoNLL-2005 task."""

from collections.abc import Sequence
from typing import NamedTuple

from elmo_jax.tasks.formats.scores import LabelScores, score_labels
from elmo_jax.tasks.formats.tags import brackets, spans

_VERB = "V"
_CONTINUATION = "C-"


class Argument(NamedTuple):
    """An argument of a predicate."""

    label: str  # the role, such as ARG0, ARGM-TMP or R-ARG1; also V, the predicate itself
    pieces: tuple[tuple[int, int], ...]  # the first and the last word of each piece of the argument


def arguments(tags: Sequence[str]) -> list[Argument]:
    """Returns the arguments of one predicate from BIO tags; an I that opens a span counts as B.

    A span C-x is a further piece of the last argument x before it or, if there is none, a new argument x.

    Raises:
      TagError: a tag is none of O, B-x and I-x.
    """
    result: list[Argument] = []
    last: dict[str, int] = {}  # the place in `found` of the last argument of each label
    for label, start, end in spans(tags):
        whole = label.removeprefix(_CONTINUATION)
        if label.startswith(_CONTINUATION) and whole in last:
            argument = result[last[whole]]
            result[last[whole]] = argument._replace(pieces=(*argument.pieces, (start, end)))
        else:
            last[whole] = len(result)
            result.append(Argument(whole, ((start, end),)))
    return result


def evaluate(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> LabelScores:
    """Counts the arguments whose label and pieces are all right, given the gold and predicted BIO tags per predicate.

    Raises:
      ValueError: the numbers of predicates, or of the words of a predicate's sentence, differ.
      TagError: a tag is none of O, B-x and I-x.
    """
    pairs = list(zip(gold, predicted, strict=True))
    for gold_tags, predicted_tags in pairs:
        if len(gold_tags) != len(predicted_tags):
            raise ValueError(f"{len(gold_tags)} gold tags, {len(predicted_tags)} predicted ones")
    return score_labels(((set(arguments(a)), set(arguments(b))) for a, b in pairs), _VERB)


def proposition_lines(words: Sequence[str], predicates: Sequence[int], tags: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of one sentence in a file for srl-eval, given the BIO tags of each predicate.

    Returns:
      One line per word, with the predicate or `-` in the first column and one column of brackets per predicate, in the
      order of their positions; and an empty line.

    Raises:
      ValueError: two predicates have the same position, which the format cannot express, or the numbers of tags and
        words differ.
    """
    if len(set(predicates)) != len(predicates):
        raise ValueError(f"predicates {list(predicates)} have a position in common")
    columns = [["-"] * len(words)]
    for predicate, predicate_tags in sorted(zip(predicates, tags, strict=True)):
        columns[0][predicate] = words[predicate]
        columns.append(brackets(predicate_tags))
    return [*(" ".join(row) for row in zip(*columns, strict=True)), ""]
