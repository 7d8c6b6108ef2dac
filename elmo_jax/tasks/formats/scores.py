"""Computes scores that several tasks use, in percent."""

import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from elmo_jax.tasks.formats.tags import spans


@dataclasses.dataclass(frozen=True)
class Counts:
    """The numbers of spans, or of other predictions, that are both predicted and gold, predicted, and gold."""

    correct: int = 0
    predicted: int = 0
    gold: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.correct + other.correct, self.predicted + other.predicted, self.gold + other.gold)

    @property
    def precision(self) -> float:
        return percent(self.correct, self.predicted)

    @property
    def recall(self) -> float:
        return percent(self.correct, self.gold)

    @property
    def f1(self) -> float:
        # This is the order of conlleval and srl-eval, so the result is rounded as theirs is.
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0

    def metrics(self) -> dict[str, float]:
        return {"f1": self.f1, "precision": self.precision, "recall": self.recall}


@dataclasses.dataclass(frozen=True)
class LabelScores:
    """The counts of all labels, and those of each label that is gold or predicted, in alphabetical order."""

    overall: Counts
    labels: dict[str, Counts]

    def metrics(self, **others: float) -> dict[str, float]:
        """Returns F1, precision and recall of all labels, the others, and `f1_x` of each label x."""
        return {**self.overall.metrics(), **others, **{f"f1_{label}": c.f1 for label, c in self.labels.items()}}


def score_labels(pairs: Iterable[tuple[set[Any], set[Any]]], ignored: str = "") -> LabelScores:
    """Counts what is equal in pairs of gold and predicted spans, or others with a `label`, of each sentence.

    The label `ignored` does not count overall.
    """
    counters: dict[str, Counter[str]] = {"correct": Counter(), "predicted": Counter(), "gold": Counter()}
    for gold, predicted in pairs:
        for name, labelled in (("correct", gold & predicted), ("predicted", predicted), ("gold", gold)):
            counters[name].update(span.label for span in labelled)
    names = sorted(counters["gold"].keys() | counters["predicted"].keys())
    labels = {label: Counts(**{name: counter[label] for name, counter in counters.items()}) for label in names}
    return LabelScores(sum((labels[label] for label in names if label != ignored), Counts()), labels)


def score_spans(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> LabelScores:
    """Counts the spans whose type and both ends are right, as conlleval does, from tags in BIO or IOB1.

    A predicted I that opens a span counts as B.
    """
    return score_labels((set(spans(a)), set(spans(b))) for a, b in zip(gold, predicted, strict=True))


def percent(part: float, whole: float) -> float:
    """Returns a share in percent; 0 if the whole is 0."""
    return 100 * part / whole if whole else 0.0


def accuracy(gold: Iterable[Hashable], predicted: Iterable[Hashable]) -> float:
    """Returns the share of equal pairs, in percent."""
    right = [a == b for a, b in zip(gold, predicted, strict=True)]
    return percent(sum(right), len(right))


def tag_accuracy(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> float:
    """Returns the share of words with the right tag over all sentences, in percent."""
    right = [a == b for tags, others in zip(gold, predicted, strict=True) for a, b in zip(tags, others, strict=True)]
    return percent(sum(right), len(right))
