"""Handles the signals after which a run saves the step in progress; `interrupts` ends what has nothing to save."""

import dataclasses
import signal
import time
from types import FrameType
from typing import Self

from elmo_jax.interrupts import SAME_SECONDS, acknowledged


class StopRequested(Exception):
    """The end of an evaluation because a process of the run has received a signal.

    Attributes:
      signal: the signal.
    """

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


@dataclasses.dataclass(frozen=True)
class Stopped:
    """A run that has been stopped by a signal, after saving its state."""

    signal: signal.Signals  # the signal that was received
    step: int  # the number of updates made


# SIGHUP: the terminal was closed, or a preemption; SIGUSR1: a scheduler's warning; SIGXCPU: the limit of CPU time
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU)


class StopSignals:
    """A context that records the first of `_SIGNALS`. SIGHUP that is ignored, as under nohup, stays ignored.

    A second signal has its usual effect, unless it comes within `SAME_SECONDS` of the first.

    Attributes:
      received: the signal that has been received; None for none.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._first = 0.0  # when it was received

    def __enter__(self) -> Self:
        taken = [n for n in _SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
        self._old = {number: signal.signal(number, self._receive) for number in map(int, taken)}
        acknowledged.update(self._old)
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._first = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._first >= SAME_SECONDS:
            signal.signal(number, self._old[number])
            signal.raise_signal(number)

    def __exit__(self, *_: object) -> None:
        acknowledged.difference_update(self._old)
        for number, handler in self._old.items():
            signal.signal(number, handler)
