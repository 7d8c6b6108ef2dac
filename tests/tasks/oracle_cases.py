"""Reads the arrays of `tests/oracles/tasks`, whose keys are `case/kind/name`."""

from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[1] / "oracles" / "tasks"


def read_case(file, case):
    """Returns the arrays of one case by kind and name."""
    kinds = {}
    with np.load(FOLDER / file) as arrays:
        for key in arrays.files:
            name, kind, rest = key.split("/", 2)
            if name == case:
                kinds.setdefault(kind, {})[rest] = arrays[key]
    return kinds
