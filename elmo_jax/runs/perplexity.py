"""Perplexities, and how they stand in the metrics of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

PERPLEXITIES = ("forward", "backward", "average")


@dataclasses.dataclass(frozen=True)
class Perplexity:
    """Perplexities of one text, and what it holds."""

    forward: float
    backward: float
    tokens: int  # targets of one direction: words, and one mark per sentence
    unknown: float  # share of the targets that are `<UNK>`

    @property
    def average(self) -> float:
        """exp of the mean of both losses: the geometric mean, as the original prints it."""
        return math.sqrt(self.forward) * math.sqrt(self.backward)

    def as_dict(self) -> dict[str, float]:
        """`forward`, `backward` and `average`."""
        return {name: getattr(self, name) for name in PERPLEXITIES}

    def as_metrics(self, text: str) -> dict[str, float]:
        """For `metrics.jsonl`: `TEXT/perplexity/forward` and the others."""
        return {f"{text}/perplexity/{name}": value for name, value in self.as_dict().items()}

    def __str__(self) -> str:
        return f"forward {self.forward:,.1f} · backward {self.backward:,.1f} · average {self.average:,.1f}"


def of_record(record: Mapping[str, Any] | None, text: str) -> dict[str, float] | None:
    """The perplexities of a text that a record of `metrics.jsonl` has; None without a record."""
    return None if record is None else {name: record[f"{text}/perplexity/{name}"] for name in PERPLEXITIES}


def exp(loss: float) -> float:
    """The perplexity of a loss in nats; infinite where float64 ends."""
    return math.exp(loss) if loss < 700 else math.inf
