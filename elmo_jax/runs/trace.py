"""Traces steps of a training with JAX's profiler."""

import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import jax
from etils import epath

from elmo_jax.files import write_bytes


class Tracer:
    """A context that traces the steps that the settings name."""

    def __init__(self, folder: epath.Path, chosen: tuple[int, ...]) -> None:
        """Traces the steps `chosen`, the first one and their number or nothing, to a folder per process."""
        self._folder = folder / f"process_{jax.process_index()}"
        first, number = chosen or (0, 0)
        self._steps = range(first, first + number)
        self._running: tempfile.TemporaryDirectory[str] | None = (
            None  # which receives the trace, as JAX needs a local one
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def before(self, step: int) -> None:
        """Begins the trace if this step is the first one to trace."""
        if step in self._steps and self._running is None:
            self._running = tempfile.TemporaryDirectory(prefix="elmo-jax-")
            jax.profiler.start_trace(self._running.name)

    def after(self, step: int, result: Any) -> None:
        """Ends the trace if this step is the last one to trace; `result` is what its program computes."""
        if self._running is not None and step + 1 >= self._steps.stop:
            jax.block_until_ready(result)
            self._stop()

    def _stop(self) -> None:
        if self._running is None:
            return
        with self._running as name:
            self._running = None
            try:
                jax.profiler.stop_trace()
                for path in (path for path in Path(name).rglob("*") if path.is_file()):
                    copy = self._folder / path.relative_to(name)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    write_bytes(copy, path.read_bytes())
            except Exception as error:  # of a disk or of the client of an object store; training continues
                print(f"elmo-jax: warning: {self._folder}: the trace was not written ({error})", file=sys.stderr)
