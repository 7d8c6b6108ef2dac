"""What all training runs share, of biLMs and of tasks: checkpoints, metrics, progress, patience and signals."""

import contextlib
import signal
import time
from collections.abc import Sequence
from typing import Any

import jax
from etils import epath

from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.data.windows import EvaluationWindow
from elmo_jax.distributed.collectives import RequestReducer, StepRequests, is_primary, raise_on_all
from elmo_jax.interrupts import Stopped, StopRequested, StopSignals
from elmo_jax.runs.activity import PHASES, Activity
from elmo_jax.runs.metrics import MetricsLog, Records
from elmo_jax.runs.perplexity import read_evaluations
from elmo_jax.runs.progress import RunProgress


def is_out_of_patience(scores: Sequence[float], patience: int) -> bool:
    """Returns whether none of the last `patience` scores is better, which is lower, than the best one before them.

    The `scores` are those of all evaluations so far, oldest first; a `patience` of 0 means never.
    """
    return 0 < patience < len(scores) and min(scores[-patience:]) >= min(scores[:-patience])


class RunContext(contextlib.ExitStack):
    """One launch of a training; a context that closes its checkpoints, its metrics and its progress.

    Of several processes, only the first writes metrics and prints.
    """

    # Other processes than the first have the evaluations of all launches, and the rest of this one, in memory.
    log: Records
    progress: RunProgress

    def __init__(
        self, workdir: epath.Path, keep: int, keep_every: int = 0, trackers: Sequence[str] = ("tensorboard",)
    ) -> None:
        super().__init__()
        self.checkpoints = Checkpoints(workdir / "checkpoints", keep, keep_every)
        self.activity = Activity()
        self._workdir, self._launched, self._wall_before = workdir, time.perf_counter(), 0.0
        self._trackers = trackers
        self.callback(self.checkpoints.close)

    def open(self, step: int, *, total: int, done: int, unit: str = "step", first: int = 0) -> None:
        """Opens the metrics, and begins to show progress.

        Earlier launches have come from step `first` to `step`, and done `done` of the `total` units of work, such as
        steps or epochs.
        """
        with raise_on_all():
            others = Records(evaluations=read_evaluations(self._workdir, step))
            self.log = MetricsLog(self._workdir, step, self._trackers) if is_primary() else others
            self.progress = RunProgress(total, done, unit, silent=not is_primary())
        self.callback(self.log.close)
        self.callback(self.progress.close)
        if step > first:
            self.progress.say(f"resuming from the checkpoint of step {step}")
        elif self.log.records and not self.checkpoints.steps():
            self.progress.say(f"the run was stopped before its first checkpoint; starting again from step {first}")
        self._wall_before = self.log.latest("wall_seconds")
        self.activity.add({phase: self.log.latest(f"seconds/{phase}") for phase in PHASES})

    @property
    def wall_seconds(self) -> float:
        return self._wall_before + time.perf_counter() - self._launched

    def write(self, step: int, values: dict[str, Any]) -> None:
        self.log.write(step, {**values, "wall_seconds": self.wall_seconds})

    def last_save(self) -> str:
        """Returns the step and the time of the newest save that is complete, for a progress line."""
        if self.checkpoints.written is None:
            return ""
        step, seconds = self.checkpoints.written
        return f" · saved step {step} at {time.strftime('%H:%M', time.localtime(seconds))}"

    def save_and_stop(self, step: int, state: Any, received: int) -> Stopped:
        self.log.flush()  # a second signal may end the process during the save
        with self.activity.during("checkpoints"):
            self.checkpoints.save(step, state)
            self.checkpoints.wait()
        return Stopped(signal.Signals(received), step)


class EvaluationWatch:
    """The callback of evaluations, on all processes: reports progress, and stops at a signal."""

    def __init__(self, context: RunContext, reducer: RequestReducer, signals: StopSignals) -> None:
        self._progress, self._activity = context.progress, context.activity
        self._reducer, self._signals = reducer, signals
        self.begin("")

    def begin(self, text: str) -> None:
        self._text, self._began, self._windows, self._tokens = text, time.monotonic(), 0, 0
        self._reduced: jax.Array | StepRequests | None = None  # after the window before

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def __call__(self, window: EvaluationWindow) -> None:
        """Counts a window; raises `StopRequested` if a process has received a signal."""
        before, self._reduced = self._reduced, self._reducer.reduce(StepRequests(self._signals.received or 0))
        known = self._reduced if isinstance(self._reduced, StepRequests) else before
        if known is not None and (number := int(jax.device_get(known)[0])):
            raise StopRequested(number)
        self._activity.advance()
        self._windows += 1
        self._tokens += int(window.mask.sum()) * jax.process_count()
        seconds = self.seconds
        left = seconds * window.left / self._windows
        share = self._windows / (self._windows + window.left)
        self._progress.detail(f"{self._text}: {share:.0%}, {self._tokens / seconds:,.0f} tokens/s", left)
