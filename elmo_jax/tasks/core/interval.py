"""Keeps what a training has measured since its last evaluation, so that a stopped one continues with it.

The sums of a training that is stopped between two evaluations are written to `stopped.json` before its checkpoint. A
training that resumes from another step than that starts with empty sums.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from etils import epath

from elmo_jax import files

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

    def write(self, path: epath.Path, step: int) -> None:
        """Writes the sums at a step, the number of updates made; replaces those of an earlier stop."""
        losses = [float(loss) for loss in jax.device_get(self.losses)]
        files.write_sealed_json(path, {"step": step, "losses": losses, "words": self.words, "seconds": self.seconds})

    @classmethod
    def read(cls, path: epath.Path, step: int) -> Sums:
        """Returns the sums at a step; empty ones if the training was not stopped there.

        Raises:
          UserError: the file is damaged.
        """
        try:
            found = files.read_sealed_json(path, _ADVICE)
        except FileNotFoundError:
            return cls()
        if found["step"] != step:  # it was killed later, or the checkpoint of the stop is damaged
            return cls()
        return cls([np.float32(loss) for loss in found["losses"]], found["words"], found["seconds"])
