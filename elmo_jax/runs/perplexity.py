"""Perplexities, and their names in the metrics of a run."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from elmo_jax.config import DIRECTIONS

PERPLEXITIES = (*DIRECTIONS, "average")


@dataclasses.dataclass(frozen=True)
class Perplexity:
    """The perplexities of one text."""

    forward: float  # the perplexity of the forward direction
    backward: float | None  # the perplexity of the backward direction; None if the biLM has none
    tokens: int  # the targets per direction: the words, and one mark per sentence
    unknown: float  # the fraction of the targets that are `<UNK>`
    sources: Mapping[str, "Perplexity"] = dataclasses.field(default_factory=dict)  # those of its named sources

    @property
    def average(self) -> float:
        """The geometric mean of both, which is exp of the mean of both losses, as in bilm-tf; or that of forward."""
        return geometric_mean(self.forward, self.backward)

    def score(self, mixture: Iterable[tuple[str, float]]) -> float:
        """Returns the average in which each source has its weight in the mixture, by which steps are compared."""
        weights = dict(mixture)
        counted = [(weights.get(name, 1.0) * of.tokens, math.log(of.average)) for name, of in self.sources.items()]
        total = sum(count for count, _ in counted)
        return exp(sum(count * loss for count, loss in counted) / total) if weights and total else self.average

    def as_dict(self) -> dict[str, float]:
        """Returns a dict with the keys `forward`, `backward` (if there is one) and `average`."""
        return {name: value for name in PERPLEXITIES if (value := getattr(self, name)) is not None}

    def as_metrics(self, text: str) -> dict[str, float]:
        """Returns the values as in `metrics.jsonl`, with keys such as `TEXT/perplexity/forward`.

        Those of a source are `TEXT/SOURCE/perplexity/forward` and so on.
        """
        values = {f"{text}/perplexity/{name}": value for name, value in self.as_dict().items()}
        values |= {f"{text}/tokens": self.tokens, f"{text}/unknown": self.unknown}
        for name, found in self.sources.items():
            values |= found.as_metrics(f"{text}/{name}")
        return values

    @classmethod
    def of_metrics(cls, record: Mapping[str, Any], text: str) -> "Perplexity | None":
        """Returns what `as_metrics` has put into a record, or None if the record has no perplexities of this text."""
        known = of_record(record, text)
        if known is None:
            return None
        last = f"/perplexity/{PERPLEXITIES[-1]}"
        names = [key[len(text) + 1 : -len(last)] for key in record if key.startswith(f"{text}/") and key.endswith(last)]
        sources = {name: found for name in names if name and (found := cls.of_metrics(record, f"{text}/{name}"))}
        return cls(
            known["forward"], known.get("backward"), record[f"{text}/tokens"], record[f"{text}/unknown"], sources
        )

    def shown(self, digits: int = 1) -> str:
        """Returns the values, without those of the sources, as text."""
        return " · ".join(f"{name} {value:,.{digits}f}" for name, value in self.as_dict().items())

    def __str__(self) -> str:
        return self.shown() + "".join(f" · {name} {found.average:,.1f}" for name, found in self.sources.items())


def geometric_mean(forward: float, backward: float | None) -> float:
    """Returns the geometric mean of two perplexities, whose product may be too large for a float, or the only one."""
    return forward if backward is None else math.sqrt(forward) * math.sqrt(backward)


def of_record(record: Mapping[str, Any], text: str) -> dict[str, float] | None:
    """Returns the perplexities of a text in a record of `metrics.jsonl`, or None if the record has none."""
    keys = {name: f"{text}/perplexity/{name}" for name in PERPLEXITIES}
    found = {name: record[key] for name, key in keys.items() if key in record}
    return found if found.keys() >= {"forward", "average"} else None


def of_directions(losses: Iterable[float]) -> str:
    """Returns the loss of each direction as text."""
    return ", ".join(f"{name} {loss}" for name, loss in zip(DIRECTIONS, losses, strict=False))


def exp(loss: float) -> float:
    """Returns the perplexity of a loss in nats; at most exp(700), since JSON has no infinity, and NaN for NaN."""
    return math.exp(min(loss, 700.0))  # min(NaN, 700.0) is NaN
