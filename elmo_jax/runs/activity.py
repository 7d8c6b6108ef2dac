"""Accounts for the time of a run, ends a process that no longer progresses, and traces steps with JAX's profiler."""

import contextlib
import faulthandler
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import jax
from etils import epath

from elmo_jax.errors import TRY_AGAIN
from elmo_jax.files import write_bytes, write_text
from elmo_jax.interrupts import leave

# What a launch does, and how it is named in the final report; what is lost are steps that a killed launch had made.
PHASES = {
    "steps": "steps",
    "data": "waiting for data",
    "evaluation": "evaluation",
    "checkpoints": "checkpoints and export",
    "compilation": "compilation",
    "start": "start",
    "lost": "lost to restarts",
}
_LONGER = 10  # how much longer than a step the other phases may take, which cannot be divided into steps
_GRACE_SECONDS = 5.0  # for the other processes to write their stacks; process 0, whose loss aborts them, waits longer
_WRITING_SECONDS = 60.0  # for writing the stacks to a disk that may be what hangs


class Activity:
    """What a launch is doing (`phase`, a key of `PHASES`), since when, and for how long the run has done so.

    The work last `progressed` at this time of `time.monotonic`.
    """

    def __init__(self) -> None:
        self.phase, self.progressed = "start", time.monotonic()
        self._since, self._seconds = self.progressed, dict.fromkeys(PHASES, 0.0)

    def add(self, seconds: Mapping[str, float]) -> None:
        self._seconds = {phase: value + seconds.get(phase, 0.0) for phase, value in self._seconds.items()}

    def advance(self) -> None:
        self.progressed = time.monotonic()

    def enter(self, phase: str) -> str:
        """Begins a phase and returns the one before."""
        self.advance()
        self._seconds[self.phase] += self.progressed - self._since
        self._since, before, self.phase = self.progressed, self.phase, phase
        return before

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        before = self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def seconds(self) -> dict[str, float]:
        self.enter(self.phase)
        return dict(self._seconds)


class Watchdog:
    """A context in which this process ends, after writing its Python stacks to a folder, when it does not progress.

    A step may take so many `minutes`, unless they are 0.
    """

    def __init__(self, activity: Activity, minutes: float, folder: epath.Path) -> None:
        self._activity, self._minutes, self._closed = activity, minutes, threading.Event()
        self._path = folder / f"process_{jax.process_index()}_{socket.gethostname()}.txt"
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        if self._minutes:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def _watch(self) -> None:
        limit, before = 60 * self._minutes, time.monotonic()
        while not self._closed.wait(min(limit / 10, 1.0)):
            if time.monotonic() - before > limit / 2:  # the whole process was suspended, not only its work
                self._activity.advance()
            before = time.monotonic()
            waited = before - self._activity.progressed
            if waited > limit * (1 if self._activity.phase in ("steps", "data") else _LONGER):
                self._end(f"{PHASES[self._activity.phase]}: no progress for {waited / 60:.3g} minutes")

    def _end(self, reason: str) -> None:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
            faulthandler.dump_traceback(file)
            file.seek(0)
            stacks = file.read()
        writing = threading.Thread(target=self._write, args=(f"{reason}\n\n{stacks}",), daemon=True)
        writing.start()
        writing.join(_WRITING_SECONDS)
        time.sleep(_GRACE_SECONDS * (1 if jax.process_index() else 3))
        leave(f"{reason}; its stacks are in {self._path}; the same launch resumes from the last checkpoint", TRY_AGAIN)

    def _write(self, text: str) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self._path, text)
        except Exception as error:  # of a disk or of the client of an object store
            print(f"{self._path}: {error}\n{text}", file=sys.stderr, flush=True)


class Tracer:
    """A context that traces the steps `chosen`, the first one and their number or nothing, to a folder per process."""

    def __init__(self, folder: epath.Path, chosen: tuple[int, ...]) -> None:
        self._folder = folder / f"process_{jax.process_index()}"
        first, number = chosen or (0, 0)
        self._steps = range(first, first + number)
        self._running: tempfile.TemporaryDirectory[str] | None = None  # gets the trace, as JAX needs a local folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def before(self, step: int) -> None:
        if step in self._steps and self._running is None:
            self._running = tempfile.TemporaryDirectory(prefix="elmo-jax-")
            jax.profiler.start_trace(self._running.name)

    def after(self, step: int, result: Any) -> None:
        if self._running is not None and step + 1 >= self._steps.stop:
            jax.block_until_ready(result)  # of the program of the step
            self._stop()

    def _stop(self) -> None:
        if self._running is None:
            return
        with self._running as name:
            self._running = None
            try:
                jax.profiler.stop_trace()
                for path in filter(Path.is_file, Path(name).rglob("*")):
                    copy = self._folder / path.relative_to(name)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    write_bytes(copy, path.read_bytes())
            except Exception as error:  # of a disk or of the client of an object store; training continues
                print(f"elmo-jax: warning: {self._folder}: the trace was not written ({error})", file=sys.stderr)
