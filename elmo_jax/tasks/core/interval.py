"""Keeps what a training has measured since its last evaluation, so that a stopped one continues with it.

The sums of a training that is stopped between two evaluations are written to `stopped.json` before its checkpoint, by
the step of that checkpoint. A resumed training reads those of the step from which it continues. Runs of older versions
have no such file; the first record after their resume then covers the steps since the resume alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import jax
import numpy as np
from etils import epath

from elmo_jax import files
from elmo_jax.tasks.core.run_files import json_of, stored

_ADVICE = "delete it; the next record of the metrics then lacks the steps before the stop"


@dataclasses.dataclass
class Sums:
    """What was measured since the last evaluation.

    Attributes:
      losses: the loss of each step, scalars float32.
      words: the number of words trained on.
      seconds: the time spent on training.
    """

    losses: list[Any] = dataclasses.field(default_factory=list)
    words: int = 0
    seconds: float = 0.0

    @property
    def loss(self) -> float:
        """The mean loss of the steps, of which there must be some."""
        return float(np.mean(np.array(jax.device_get(self.losses), np.float32)))

    def write(self, path: epath.Path, step: int, others: Collection[int]) -> None:
        """Writes the sums at a step, next to those of other steps that the file has.

        Args:
          path: the file.
          step: the number of updates made.
          others: the steps whose sums are kept, since they have a checkpoint.
        """
        values = dataclasses.asdict(self) | {"losses": [float(loss) for loss in jax.device_get(self.losses)]}
        kept = {number: found for number, found in _read(path).items() if int(number) in others}
        files.write_json(path, {**kept, str(step): values})

    @classmethod
    def read(cls, path: epath.Path, step: int) -> Sums:
        """Returns the sums at a step; empty ones if the training was not stopped there.

        Raises:
          UserError: the file is damaged.
        """

        def of_step(path: epath.Path) -> Sums:
            found = _steps(path).get(str(step))
            if found is None:
                return cls()
            return cls([np.float32(loss) for loss in found["losses"]], int(found["words"]), float(found["seconds"]))

        return stored(path, of_step, _ADVICE) if path.exists() else cls()


def _read(path: epath.Path) -> dict[str, Any]:
    return stored(path, _steps, _ADVICE) if path.exists() else {}


def _steps(path: epath.Path) -> dict[str, Any]:
    """Returns the sums by step. Raises `ValueError` or `TypeError` for another content."""
    found = json_of(path)
    for number, values in found.items():
        if int(number) < 0 or not isinstance(values, dict):
            raise ValueError
    return found
