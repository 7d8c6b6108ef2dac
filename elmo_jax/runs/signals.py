"""Handles SIGTERM and Ctrl-C, after which a run finishes and saves the step in progress."""

from __future__ import annotations

import dataclasses
import signal
from types import FrameType
from typing import Self


@dataclasses.dataclass(frozen=True)
class Stopped:
    """A run that has been stopped by a signal, after saving its state.

    Attributes:
      signal: the signal that was received.
      step: the number of updates made.
    """

    signal: signal.Signals
    step: int


class StopSignals:
    """A context that records the first SIGTERM or SIGINT; a second signal has its usual effect.

    Attributes:
      received: the signal that has been received; None for none.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def __enter__(self) -> Self:
        self._old = {
            number: signal.signal(number, self._receive) for number in map(int, (signal.SIGTERM, signal.SIGINT))
        }
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        signal.signal(number, self._old[number])

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
