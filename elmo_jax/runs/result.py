"""Reports the end of a run: writes its result, and prints how it ended."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from etils import epath

from elmo_jax.distributed.collectives import is_primary
from elmo_jax.errors import reason_of
from elmo_jax.files import read_checksummed_json, write_bytes, write_checksummed_json
from elmo_jax.interrupts import Stopped

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run that is complete."""

    result: dict[str, Any]  # the contents of `result.json`; empty on all processes but the first
    already: bool  # whether an earlier launch completed the run


def write_result(folder: epath.Path, result: dict[str, Any]) -> None:
    """Writes `result.json` of a run, or of a seed of a task."""
    write_checksummed_json(folder / "result.json", result)


def read_result(folder: epath.Path) -> dict[str, Any] | None:
    """Reads what `write_result` wrote; returns None if there is no result. Raises `UserError` if it is damaged."""
    try:
        return read_checksummed_json(folder / "result.json", "delete it and run the same command again")
    except FileNotFoundError:
        return None


def print_summary(ended: Finished | Stopped, workdir: epath.Path, table: Callable[..., str]) -> int:
    """Prints how a run has ended, and returns the command's exit status.

    `table` makes the report of a complete run from its result and its folder.
    """
    if isinstance(ended, Stopped):
        if is_primary():
            what = f"stopped by {ended.signal.name} at step {ended.step}, saved in {workdir}"
            print(f"{what}; run the same command to resume")
        return 128 + ended.signal
    if is_primary():
        if ended.already:
            print(f"this run is complete: {ended.result['steps']:,} steps, in {workdir}")
        print(f"\n{table(ended.result, workdir)}")
    return 0


@contextlib.contextmanager
def plot(path: epath.Path, width: float, height: float) -> Iterator[Figure]:
    """Yields a Matplotlib figure of this size in inches, and writes it as a PNG file at the end."""
    # The Agg canvas needs no display. Matplotlib is imported here, since only the end of a run needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    write_bytes(path, content.getvalue())


@contextlib.contextmanager
def best_effort(path: epath.Path) -> Iterator[None]:
    """A context that writes something that a run does not need: an error in it is a warning."""
    try:
        yield
    except Exception as error:  # of Matplotlib or of a disk, of any kind
        with contextlib.suppress(OSError):
            text = f"{path}: not written ({reason_of(error)}); the run goes on without it"
            print(f"elmo-jax: warning: {text}", file=sys.stderr)


def thousands(value: float) -> str:
    """Formats a number with k, M or B for thousands, millions and billions."""
    for unit, name in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"
