"""Computes the scores of semantic role labelling as srl-eval.pl does, the script of the CoNLL-2005 task."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from elmo_jax.tasks.formats.scores import Counts
from elmo_jax.tasks.formats.tags import brackets, spans

_VERB = "V"
_CONTINUATION = "C-"


class Argument(NamedTuple):
    """An argument of a predicate.

    Attributes:
      label: the role, such as ARG0, ARGM-TMP or R-ARG1; also V, the predicate itself.
      pieces: the first and the last word of each piece of the argument.
    """

    label: str
    pieces: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Scores:
    """The counts of srl-eval.

    Attributes:
      overall: the counts of arguments of all labels other than V.
      labels: the counts of arguments of each label that is gold or predicted, including V, in alphabetical order.
    """

    overall: Counts
    labels: dict[str, Counts]


def arguments(tags: Sequence[str]) -> list[Argument]:
    """Returns the arguments of one predicate.

    A span C-x is a further piece of the last argument x before it or, if there is none, a new argument x.

    Args:
      tags: the tags in BIO, which may be ill-formed; an I that opens a span counts as B.

    Raises:
      TagError: a tag is none of O, B-x and I-x.
    """
    found: list[Argument] = []
    last: dict[str, int] = {}  # the place in `found` of the last argument of each label
    for label, start, end in spans(tags):
        whole = label.removeprefix(_CONTINUATION)
        if label.startswith(_CONTINUATION) and whole in last:
            argument = found[last[whole]]
            found[last[whole]] = argument._replace(pieces=(*argument.pieces, (start, end)))
        else:
            last[whole] = len(found)
            found.append(Argument(whole, ((start, end),)))
    return found


def evaluate(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Scores:
    """Counts the arguments whose label and pieces are all right.

    Args:
      gold: the gold tags of each predicate, in BIO.
      predicted: the predicted tags of each predicate.

    Raises:
      ValueError: the numbers of predicates, or of the words of a predicate's sentence, differ.
      TagError: a tag is none of O, B-x and I-x.
    """
    of_both: dict[str, Counter[str]] = {"correct": Counter(), "predicted": Counter(), "gold": Counter()}
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        if len(gold_tags) != len(predicted_tags):
            raise ValueError(f"{len(gold_tags)} gold tags, {len(predicted_tags)} predicted ones")
        gold_arguments, predicted_arguments = set(arguments(gold_tags)), set(arguments(predicted_tags))
        of_both["gold"].update(argument.label for argument in gold_arguments)
        of_both["predicted"].update(argument.label for argument in predicted_arguments)
        of_both["correct"].update(argument.label for argument in gold_arguments & predicted_arguments)
    names = sorted(of_both["gold"].keys() | of_both["predicted"].keys())
    labels = {label: Counts(**{name: counter[label] for name, counter in of_both.items()}) for label in names}
    return Scores(sum((counts for label, counts in labels.items() if label != _VERB), Counts()), labels)


def metric(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Scores tags; see `evaluate`.

    Returns:
      The metrics in percent: `f1`, `precision` and `recall` over all labels other than V, and `f1_x` of each label x.
    """
    scores = evaluate(gold, predicted)
    return {**scores.overall.metrics(), **{f"f1_{label}": counts.f1 for label, counts in scores.labels.items()}}


def proposition_lines(words: Sequence[str], predicates: Sequence[int], tags: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of one sentence in a file for srl-eval.

    Args:
      words: the words of the sentence.
      predicates: the distinct positions of the predicates.
      tags: the tags of each predicate, in BIO.

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
