"""Tests the watchdog with a simulated clock."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from etils import epath

from elmo_jax.runs import activity
from elmo_jax.runs.activity import Activity, Watchdog


@pytest.mark.parametrize(
    ("waits", "ends"),
    [
        ([1] * 59, False),
        ([1] * 62, True),
        ([1, 4000, *[1] * 59], False),  # suspended, as by Ctrl-Z, and continued
        ([1, 4000, *[1] * 62], True),
    ],
)
def test_the_time_for_which_a_process_was_suspended_does_not_count(
    waits: list[int], ends: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, left = [0.0], iter(waits)
    monkeypatch.setattr(activity.time, "monotonic", lambda: clock[0])

    def wait(seconds: float) -> bool:
        taken = next(left, None)
        clock[0] += taken or 0
        return taken is None

    class Ended(Exception):
        pass

    def end(reason: str) -> None:
        raise Ended(reason)

    dog = Watchdog(Activity(), 1.0, epath.Path(tmp_path))
    monkeypatch.setattr(dog, "_closed", type("Closed", (), {"wait": staticmethod(wait)}))
    monkeypatch.setattr(dog, "_end", end)
    dog._activity.phase = "steps"
    with pytest.raises(Ended, match="steps: no progress for 1.") if ends else contextlib.nullcontext():
        dog._watch()
