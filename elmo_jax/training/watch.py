"""Watches evaluations: shows their progress, and stops them at a signal."""

import time

import jax

from elmo_jax.data.windows import EvaluationWindow
from elmo_jax.distributed.collectives import StepAgreement, Wishes
from elmo_jax.runs.stop_signals import StopRequested, StopSignals
from elmo_jax.training.session import Session


class EvaluationWatch:
    """What is called after each window of an evaluation, on all processes."""

    def __init__(self, session: Session, agreement: StepAgreement, signals: StopSignals) -> None:
        """Makes a watch that heeds the signals of all processes."""
        self._progress, self._activity = session.progress, session.activity
        self._agreement, self._signals = agreement, signals
        self.begin("")

    def begin(self, text: str) -> None:
        """Begins an evaluation, which `text` describes."""
        self._text, self._began, self._windows, self._tokens = text, time.monotonic(), 0, 0
        self._announced: jax.Array | Wishes | None = None  # after the window before

    @property
    def seconds(self) -> float:
        """The seconds since the evaluation was begun."""
        return time.monotonic() - self._began

    def __call__(self, window: EvaluationWindow) -> None:
        """Counts a window.

        Raises:
          StopRequested: a process has received a signal.
        """
        before, self._announced = self._announced, self._agreement.announce(Wishes(self._signals.received or 0))
        known = self._announced if isinstance(self._announced, Wishes) else before
        if known is not None and (number := int(jax.device_get(known)[0])):
            raise StopRequested(number)
        self._activity.advance()
        self._windows += 1
        self._tokens += int(window.mask.sum()) * jax.process_count()
        seconds = self.seconds
        left = seconds * window.left / self._windows
        share = self._windows / (self._windows + window.left)
        self._progress.detail(f"{self._text}: {share:.0%}, {self._tokens / seconds:,.0f} tokens/s", left)
