"""Derives the best evaluation and the end of a training from the dev metrics that it has recorded.

No other state is kept, so a run that was killed and resumed decides as an uninterrupted one does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from elmo_jax.tasks.core.config import TaskTrainConfig


@dataclasses.dataclass(frozen=True)
class History:
    """The evaluations on the dev examples after the first update, oldest first.

    As in AllenNLP, the evaluation before the first update is not among them: it is recorded, but it is no candidate for
    the best one, and patience does not count it.

    Attributes:
      steps: the number of updates made before each evaluation.
      metrics: the task's first metric of each evaluation.
    """

    steps: tuple[int, ...]
    metrics: tuple[float, ...]

    @classmethod
    def of(cls, records: Sequence[dict[str, Any]], name: str) -> History:
        """Returns the evaluations among the records of `metrics.jsonl`, in which `name` is the name of the metric."""
        found = [(record["step"], record[name]) for record in records if name in record and record["step"] > 0]
        return cls(tuple(step for step, _ in found), tuple(metric for _, metric in found))

    @property
    def best(self) -> int | None:
        """The step of the best evaluation, the first of equally good ones; None if there is none yet."""
        return self.steps[self.metrics.index(max(self.metrics))] if self.metrics else None

    def is_enough(self, config: TaskTrainConfig) -> bool:
        """Returns whether `patience` evaluations have passed since the best one.

        As in AllenNLP, an evaluation as good as the best one does not count as better.
        """
        if not config.patience or not self.metrics:
            return False
        return len(self.metrics) - 1 - self.metrics.index(max(self.metrics)) >= config.patience
