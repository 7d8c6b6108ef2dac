"""Computes scores that several tasks use, in percent."""

import dataclasses
from collections.abc import Hashable, Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class Counts:
    """The numbers of predicted, of gold and of correctly predicted things.

    Attributes:
      correct: the number of predicted things that are gold.
      predicted: the number of predicted things.
      gold: the number of things in the gold annotation.
    """

    correct: int = 0
    predicted: int = 0
    gold: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.correct + other.correct, self.predicted + other.predicted, self.gold + other.gold)

    @property
    def precision(self) -> float:
        """The share of the predicted things that are correct, in percent; 0 if nothing is predicted."""
        return percent(self.correct, self.predicted)

    @property
    def recall(self) -> float:
        """The share of the gold things that are predicted, in percent; 0 if nothing is gold."""
        return percent(self.correct, self.gold)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, in percent; 0 if both are 0."""
        # This is the order of conlleval and srl-eval, so the result is rounded as theirs is.
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0

    def metrics(self) -> dict[str, float]:
        """Returns F1, precision and recall by name, F1 first."""
        return {"f1": self.f1, "precision": self.precision, "recall": self.recall}


def percent(part: float, whole: float) -> float:
    """Returns a share in percent; 0 if the whole is 0."""
    return 100 * part / whole if whole else 0.0


def accuracy(gold: Iterable[Hashable], predicted: Iterable[Hashable]) -> float:
    """Returns the share of equal pairs, in percent.

    Raises:
      ValueError: the two are not equally long.
    """
    right = [a == b for a, b in zip(gold, predicted, strict=True)]
    return percent(sum(right), len(right))


def tag_accuracy(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> float:
    """Returns the share of words with the right tag over all sentences, in percent.

    Raises:
      ValueError: the number of sentences, or of the words of a sentence, is not the same.
    """
    pairs = [pair for a, b in zip(gold, predicted, strict=True) for pair in zip(a, b, strict=True)]
    return percent(sum(a == b for a, b in pairs), len(pairs))
