"""Holds the predictions of the tasks that give a text one class."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class ClassPrediction:
    """The predicted class of a text.

    Attributes:
      label: the name of the most probable class.
      probabilities: the probability of each class by name.
    """

    label: str
    probabilities: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Returns both attributes, with probabilities rounded to six decimals."""
        return {"label": self.label, "probabilities": {name: round(p, 6) for name, p in self.probabilities.items()}}

    def __str__(self) -> str:
        return f"{self.label} ({self.probabilities[self.label]:.0%})"


def class_predictions(probabilities: np.ndarray, number: int, classes: Sequence[str]) -> list[ClassPrediction]:
    """Returns the predictions of the first rows of a batch.

    Args:
      probabilities: [B, C].
      number: the number of rows that are examples.
      classes: the C names.
    """
    return [
        ClassPrediction(classes[int(row.argmax())], dict(zip(classes, row.tolist(), strict=True)))
        for row in probabilities[:number]
    ]
