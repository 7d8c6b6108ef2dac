"""The parts of the benchmark by name."""

from __future__ import annotations

from typing import Any

from elmo_jax.bench import data, embed, evaluate, infer, start, tasks, train
from elmo_jax.bench.machine import Machine
from elmo_jax.bench.sizes import SIZES
from elmo_jax.data.corpus import Corpus

_PARTS = {
    "train": train.measure,
    "infer": infer.measure,
    "embed": embed.measure,
    "evaluate": evaluate.measure,
    "data": data.measure,
    "start": start.measure,
}


def measure(part: str, size: str, corpus: Corpus, machine: Machine) -> dict[str, Any]:
    """Returns the metrics of one part at one size, or of the part `task` for one task."""
    if part == "task":
        return tasks.measure(size, corpus, machine)
    return _PARTS[part](SIZES[size], corpus, machine)
