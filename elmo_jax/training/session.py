"""Records the metrics and shows the progress of a run; of its processes, only the first writes and prints."""

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
      log: the metrics of the run; on other processes than the first, they are only in memory.
      progress: the progress of the run.
    """

    def __init__(
        self, workdir: epath.Path, step: int, launched: float, *, total: int, done: int, unit: str = "step"
    ) -> None:
        """Opens the metrics, and begins to show progress.

        Args:
          workdir: the folder of the run.
          step: the number of updates made before this launch.
          launched: the time of `time.perf_counter` at which this launch began.
          total: the units of work of the whole run.
          done: the units of work that were done before this launch.
          unit: what a unit of work is, such as a step or an epoch.
        """
        self.log = MetricsLog(workdir, step) if is_first() else Records()
        self.progress = RunProgress(total, done, unit, silent=not is_first())
        self._launched = launched
        self._wall_before = self.log.latest("wall_seconds")

    @property
    def wall_seconds(self) -> float:
        """The time in seconds that the run has taken so far, over all its launches."""
        return self._wall_before + time.perf_counter() - self._launched

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Adds a record of metrics, and the time taken."""
        self.log.write(step, {**values, "wall_seconds": self.wall_seconds})

    def lacks(self, name: str) -> bool:
        """Returns whether no record has this metric; all processes get the answer of the first."""
        return bool(of_first(self.log.first(name) is None))

    def close(self) -> None:
        """Ends the live line, and closes the metrics."""
        self.progress.close()
        self.log.close()
