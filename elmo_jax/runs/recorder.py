"""What a run tells of itself while it works, on all its processes: only the first one writes and speaks."""

from __future__ import annotations

import time
from typing import Any

from etils import epath

from elmo_jax.distributed.collectives import is_first, of_first
from elmo_jax.runs.metrics import MetricsLog, Records
from elmo_jax.runs.progress import RunProgress


class Recorder:
    """The metrics and the progress of one launch of a run.

    Attributes:
      log: the run's metrics; those of this process alone where it is not the first.
      progress: shows them.
    """

    def __init__(self, workdir: epath.Path, step: int, total: int, launched: float) -> None:
        """Opens both.

        Args:
          workdir: the run's folder.
          step: updates made when this launch goes on.
          total: updates to make.
          launched: when this launch began, by `time.perf_counter`.
        """
        self.log = MetricsLog(workdir, step) if is_first() else Records()
        self.progress = RunProgress(total, step, silent=not is_first())
        self._launched = launched
        self._wall_before = self.log.latest("wall_seconds")

    @property
    def wall_seconds(self) -> float:
        """Time that the run has taken so far, in all its launches."""
        return self._wall_before + time.perf_counter() - self._launched

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Adds a record of metrics."""
        self.log.write(step, {**values, "wall_seconds": self.wall_seconds})

    def lacks(self, name: str) -> bool:
        """Whether no record of the first process has this metric; the same on all processes."""
        return bool(of_first(self.log.first(name) is None))

    def close(self) -> None:
        """Ends the live line and writes out what is buffered."""
        self.progress.close()
        self.log.close()
