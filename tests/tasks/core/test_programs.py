"""Counts the programs that a task compiles with the shapes of an accelerator, and runs them under other settings."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from etils import epath

import elmo_jax
from elmo_jax.config_file import with_overrides
from elmo_jax.embedding import packing
from elmo_jax.runs.result import Finished
from elmo_jax.tasks.core import data
from elmo_jax.tasks.core.run import train_task
from elmo_jax.tasks.registry import NAMES, default_config, task_config
from tests.tasks import lengths
from tests.tasks.tagging import write_problem

MOST = dict.fromkeys(NAMES, 6) | dict.fromkeys(("srl", "squad", "coref"), 8)
FAST = ("pos",)


class Programs:
    """The programs that were requested, and those of them that were not in the cache."""

    def __init__(self) -> None:
        self.requested: Counter[str] = Counter()
        self.built: Counter[str] = Counter()
        self._thread = threading.local()

    def hit(self, event: str, **_: Any) -> None:
        """Remembers that the program that this thread requests was in the cache."""
        if event == "/jax/compilation_cache/cache_hits":
            self._thread.hit = True

    def end(self, event: str, seconds: float, fun_name: str = "", **_: Any) -> None:
        """Counts a program, which this thread has built or read."""
        if event == "/jax/core/compile/backend_compile_duration":
            hit, self._thread.hit = getattr(self._thread, "hit", False), False
            self.requested[fun_name] += 1
            self.built[fun_name] += not hit


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Programs]:
    monkeypatch.setattr(data, "CPU", data.ACCELERATOR)
    monkeypatch.setattr(packing, "ON_CPU", packing.ON_ACCELERATOR)
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    programs = Programs()
    jax.monitoring.register_event_duration_secs_listener(programs.end)
    jax.monitoring.register_event_listener(programs.hit)
    yield programs
    jax.monitoring.unregister_event_duration_listener(programs.end)
    jax.monitoring.unregister_event_listener(programs.hit)


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_a_task_compiles_few_programs_and_none_again(name: str, tmp_path: Path, programs: Programs) -> None:
    write_problem(tmp_path)
    settings = [*lengths.write(name, tmp_path), f"--config.bilm={tmp_path / 'bilm'}"]
    config = task_config(with_overrides(default_config(name), settings))
    first = train_task(config, epath.Path(tmp_path / "first"), name)
    assert programs.requested["jit(_train_step)"] == 2  # the number of buckets
    assert programs.requested.total() <= MOST[name], programs.requested
    programs.built.clear()
    second = train_task(config, epath.Path(tmp_path / "second"), name)
    assert programs.built.total() == 0, programs.built
    assert isinstance(first, Finished) and isinstance(second, Finished)
    assert first.result["test"] == second.result["test"]
    programs.requested.clear()
    task = elmo_jax.load_task(tmp_path / "second")
    jax.config.update("jax_enable_x64", True)  # as the calling program may have it
    try:
        metrics = task.evaluate(str(config.data.test))
    finally:
        jax.config.update("jax_enable_x64", False)
    assert metrics == pytest.approx(first.result["seeds"][0]["test"])
    task.predict([" ".join(text).split() for text in ["ab"]] if name == "pos" else [])
    assert programs.built.total() == 0, programs.built
