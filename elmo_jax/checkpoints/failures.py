"""Turns what Orbax and TensorStore raise and log when a file cannot be written into one readable line."""

import gc
import logging
import os
import sys
import time
import warnings
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from elmo_jax.errors import ERROR_NUMBER, PeerLost


def is_of_storage(error: BaseException) -> bool:
    """Returns whether an error is the operating system's refusal of a file operation (no space, no permission, …)."""
    return isinstance(error, OSError) or ERROR_NUMBER.search(str(error)) is not None


def reason(error: BaseException) -> str:
    """Returns the operating system's message if the error has its number, and else the error's own first line."""
    number = ERROR_NUMBER.search(str(error))
    if number:
        return os.strerror(int(number[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def remove_while_written(directory: epath.Path, prefix: str) -> None:
    """Deletes the folders of a failed save, whose names begin with `prefix`.

    TensorStore may still be writing other arrays and make the folders again. So they are deleted repeatedly until none
    reappears, for at most 2 seconds. Folders that appear later are deleted by the next launch.
    """
    quiet, deadline = 0, time.monotonic() + 2
    while quiet < 3 and time.monotonic() < deadline:
        found = [path for path in directory.iterdir() if path.name.startswith(prefix)] if directory.exists() else []
        quiet = 0 if found else quiet + 1
        for path in found:
            try:
                path.rmtree()
            except OSError:  # a file was added during the deletion; the next round deletes it
                pass
        time.sleep(0.05)
    gc.collect()  # ends the coroutines that waited for those arrays, which would fail when the interpreter shuts down


def barrier() -> ocp.multihost.BarrierSyncFn | None:
    """Returns the barrier at which Orbax's threads of all processes wait for each other, or None for one process.

    Orbax enters its own barrier even if this process could not write its part, and reports the failure only when the
    barrier times out after ten minutes. With this barrier it reports the failure at once. Orbax also calls every
    failure of the barrier a timeout; this barrier raises `PeerLost`, since another process has not written its part.
    """
    if jax.process_count() == 1:
        return None
    meet = ocp.multihost.get_barrier_sync_fn()

    def meet_unless_failed(*, key: str, timeout_ms: int) -> None:
        error = sys.exc_info()[1]  # the failure that the thread is handling
        if error is not None:
            raise error
        try:
            meet(key=key, timeout_ms=timeout_ms)
        except jax.errors.JaxRuntimeError as lost:
            why = " ".join(str(lost).split())[:200]
            raise PeerLost(
                f"another process has not written its part of a checkpoint ({why});"
                " the same launch resumes from the last checkpoint"
            ) from lost

    return meet_unless_failed


def tell_once() -> None:
    """Makes sure that a failed write is reported once, by the exception that is raised.

    Orbax also logs the failure, with a traceback from each of its threads. It stops waiting at the first array that
    fails; so asyncio reports the other failures as never retrieved, and TensorStore finds the event loop closed when it
    delivers them, or leaves writes that never began. All of that only repeats the exception and is suppressed. So is
    Orbax's advice to save less often, because it counts waits that the caller asked for. Everything else is reported as
    before.
    """
    for name in ("absl", "asyncio"):  # Orbax logs through absl
        logging.getLogger(name).addFilter(_is_news)  # adding a filter a second time has no effect
    warnings.filterwarnings("ignore", r"coroutine 'async_serialize.*' was never awaited", RuntimeWarning)
    if getattr(sys.unraisablehook, "__name__", "") != "_report_unraisable":
        hook = sys.unraisablehook

        def _report_unraisable(unraisable: Any) -> None:
            error = unraisable.exc_value
            if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
                hook(unraisable)

        sys.unraisablehook = _report_unraisable


def _is_news(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return not (record.name == "absl" and str(record.msg).startswith("Waiting for previous save to complete"))
    if record.name == "asyncio":
        return not is_of_storage(error)
    return f"{os.sep}orbax{os.sep}" not in record.pathname
