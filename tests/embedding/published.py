"""The published weights of the oracles, and a reader of files of vectors."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

SKIP = Path(__file__).parents[1] / "oracles" / "embedding" / "skip"


OPTIONS, WEIGHTS = SKIP / "options.json", SKIP / "weights.hdf5"


def read(path: Path) -> list[np.ndarray]:
    with h5py.File(path) as file:
        assert list(file) and set(file) == {str(number) for number in range(len(file))}
        return [file[str(number)][...] for number in range(len(file))]
