"""SIGTERM and Ctrl-C: the step in progress is finished and saved."""

from __future__ import annotations

import dataclasses
import signal
from types import FrameType
from typing import Self


@dataclasses.dataclass(frozen=True)
class Stopped:
    """A run that was asked to stop, and has saved its state."""

    signal: signal.Signals
    step: int


class StopSignals:
    """Notes the first SIGTERM or SIGINT while it is entered; a second one acts as it would without this."""

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
