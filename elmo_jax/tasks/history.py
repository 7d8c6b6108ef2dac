"""What follows from the dev metrics that a training has recorded so far: the best evaluation, the rate, the end.

Nothing of it is kept apart, so a run that was killed decides as an uninterrupted one does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from elmo_jax.tasks.config import TaskTrainConfig


@dataclasses.dataclass(frozen=True)
class History:
    """The evaluations on dev, oldest first.

    Attributes:
      steps: updates made before each.
      metrics: the task's first metric of each.
    """

    steps: tuple[int, ...]
    metrics: tuple[float, ...]

    @classmethod
    def of(cls, records: Sequence[dict[str, Any]], name: str) -> History:
        """Reads them from the records of `metrics.jsonl`; `name` is that of the metric there."""
        found = [(record["step"], record[name]) for record in records if name in record]
        return cls(tuple(step for step, _ in found), tuple(metric for _, metric in found))

    @property
    def best(self) -> int | None:
        """The step of the best evaluation, the first of equal ones; None before any."""
        return self.steps[self.metrics.index(max(self.metrics))] if self.metrics else None

    def is_enough(self, config: TaskTrainConfig) -> bool:
        """Whether `patience` evaluations have passed since the best one; as AllenNLP, only more counts as better."""
        if not config.patience or not self.metrics:
            return False
        return len(self.metrics) - 1 - self.metrics.index(max(self.metrics)) >= config.patience
