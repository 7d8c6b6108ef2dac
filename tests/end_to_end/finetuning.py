"""The arguments of `finetune`, and the results of its runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np

import elmo_jax
from elmo_jax.checkpoints.layout import flatten

TEXT = ("--data", "domain", "--heldout-fraction", "0.2", "--workers", "1")


def finetune(model: str | Path, workdir: str | Path, *more: str | Path) -> list[str]:
    """Returns the arguments of the command."""
    return ["finetune", "--from", str(model), "--workdir", str(workdir), *TEXT, *map(str, more)]


def result_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text())


def bilm_of(run: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The exported parameters and what is said of them."""
    bilm = elmo_jax.load_bilm(run)
    return flatten(bilm.params), {**bilm.info, "fingerprint": bilm.fingerprint}


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
