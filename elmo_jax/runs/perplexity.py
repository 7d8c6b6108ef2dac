"""Perplexities, and their names in the metrics of a run."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

PERPLEXITIES = ("forward", "backward", "average")


@dataclasses.dataclass(frozen=True)
class Perplexity:
    """The perplexities of one text."""

    forward: float  # the perplexity of the forward direction
    backward: float  # the perplexity of the backward direction
    tokens: int  # the targets per direction: the words, and one mark per sentence
    unknown: float  # the fraction of the targets that are `<UNK>`
    sources: Mapping[str, "Perplexity"] = dataclasses.field(default_factory=dict)  # those of its named sources

    @property
    def average(self) -> float:
        """The geometric mean of both, which is exp of the mean of both losses, as in bilm-tf."""
        return geometric_mean(self.forward, self.backward)

    def as_dict(self) -> dict[str, float]:
        """Returns a dict with the keys `forward`, `backward` and `average`."""
        return {name: getattr(self, name) for name in PERPLEXITIES}

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
        if of_record(record, text) is None:
            return None
        forward, backward = (record[f"{text}/perplexity/{name}"] for name in PERPLEXITIES[:2])
        last = f"/perplexity/{PERPLEXITIES[-1]}"
        names = [key[len(text) + 1 : -len(last)] for key in record if key.startswith(f"{text}/") and key.endswith(last)]
        sources = {name: found for name in names if name and (found := cls.of_metrics(record, f"{text}/{name}"))}
        return cls(forward, backward, record[f"{text}/tokens"], record[f"{text}/unknown"], sources)

    def __str__(self) -> str:
        whole = f"forward {self.forward:,.1f} · backward {self.backward:,.1f} · average {self.average:,.1f}"
        return whole + "".join(f" · {name} {found.average:,.1f}" for name, found in self.sources.items())


def geometric_mean(forward: float, backward: float) -> float:
    """Returns the geometric mean of two perplexities, whose product may be too large for a float."""
    return math.sqrt(forward) * math.sqrt(backward)


def of_record(record: Mapping[str, Any], text: str) -> dict[str, float] | None:
    """Returns the perplexities of a text in a record of `metrics.jsonl`, or None if the record has none."""
    keys = {name: f"{text}/perplexity/{name}" for name in PERPLEXITIES}
    return {name: record[key] for name, key in keys.items()} if record.keys() >= set(keys.values()) else None


def exp(loss: float) -> float:
    """Returns the perplexity of a loss in nats; at most exp(700), since JSON has no infinity, and NaN for NaN."""
    return math.exp(min(loss, 700.0))  # min(NaN, 700.0) is NaN
