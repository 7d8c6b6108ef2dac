"""Perplexities, their names in the metrics of a run, and the file with all that a run has measured."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from etils import epath

from elmo_jax.config import DIRECTIONS
from elmo_jax.files import read_checksummed_json, write_checksummed_json

EVALUATIONS = "evaluations.json"
WHOLE = "whole_heldout"  # in the metrics, the whole held-out text where `heldout` is only a part of it


@dataclasses.dataclass(frozen=True)
class Perplexity:
    """The perplexities of one text."""

    forward: float
    backward: float | None  # None if the biLM has no backward direction
    tokens: int  # the targets per direction: the words, and one mark per sentence
    unknown: float  # the fraction of the targets that are `<UNK>`
    sources: Mapping[str, "Perplexity"] = dataclasses.field(default_factory=dict)  # those of its named sources

    @property
    def average(self) -> float:
        """The geometric mean of both, which is exp of the mean of both losses, as in bilm-tf; or that of forward."""
        if self.backward is None:
            return self.forward
        return math.sqrt(self.forward) * math.sqrt(self.backward)  # their product may be too large for a float

    def score(self, mixture: Iterable[tuple[str, float]]) -> float:
        """Returns the average in which each source has its weight in the mixture, by which steps are compared."""
        weights = dict(mixture)
        counted = [(weights.get(name, 1.0) * of.tokens, math.log(of.average)) for name, of in self.sources.items()]
        total = sum(count for count, _ in counted)
        return exp(sum(count * loss for count, loss in counted) / total) if weights and total else self.average

    def as_dict(self) -> dict[str, float]:
        return {name: value for name in (*DIRECTIONS, "average") if (value := getattr(self, name)) is not None}

    def as_metrics(self, text: str) -> dict[str, float]:
        """Returns the values as in `metrics.jsonl`: `TEXT/perplexity/forward`, `TEXT/SOURCE/perplexity/forward`, …."""
        values = {f"{text}/perplexity/{name}": value for name, value in self.as_dict().items()}
        values |= {f"{text}/tokens": self.tokens, f"{text}/unknown": self.unknown}
        for name, perplexity in self.sources.items():
            values |= perplexity.as_metrics(f"{text}/{name}")
        return values

    def shown(self, digits: int = 1) -> str:
        return " · ".join(f"{name} {value:,.{digits}f}" for name, value in self.as_dict().items())

    def __str__(self) -> str:
        return self.shown() + "".join(f" · {name} {source.average:,.1f}" for name, source in self.sources.items())


# The perplexities that a run has measured, in the order of the steps, by the name of the text and the step.
Evaluations = dict[tuple[str, int], Perplexity]


def read_evaluations(run: epath.Path, last_step: float = math.inf) -> Evaluations:
    """Returns the perplexities that a run has measured up to a step; raises `UserError` if the file is damaged."""
    try:
        content = read_checksummed_json(run / EVALUATIONS, "restore it, or delete it to measure all perplexities again")
    except FileNotFoundError:
        return {}
    return {(text, step): _from_dict(values) for text, step, values in content["evaluations"] if step <= last_step}


def write_evaluations(run: epath.Path, evaluations: Evaluations) -> None:
    """Writes what `read_evaluations` reads."""
    entries = [[text, step, dataclasses.asdict(perplexity)] for (text, step), perplexity in evaluations.items()]
    write_checksummed_json(run / EVALUATIONS, {"evaluations": entries})


def _from_dict(values: dict[str, Any]) -> Perplexity:
    return Perplexity(**values | {"sources": {name: _from_dict(source) for name, source in values["sources"].items()}})


def of_directions(losses: Iterable[float]) -> str:
    """Returns the loss of each direction as text."""
    return ", ".join(f"{name} {loss}" for name, loss in zip(DIRECTIONS, losses, strict=False))


def exp(loss: float) -> float:
    """Returns the perplexity of a loss in nats; at most exp(700), since JSON has no infinity, and NaN for NaN."""
    return math.exp(min(loss, 700.0))  # min(NaN, 700.0) is NaN
