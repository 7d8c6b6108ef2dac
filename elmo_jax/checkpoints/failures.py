"""Turns what Orbax and TensorStore raise and log when a file cannot be written into one readable line."""

import logging
import os
import sys
import warnings
from typing import Any

import jax
import orbax.checkpoint as ocp

from elmo_jax.errors import ERROR_NUMBER, PeerLost, reason_of


def is_of_storage(error: BaseException) -> bool:
    """Returns whether an error is the operating system's refusal of a file operation (no space, no permission, …)."""
    return isinstance(error, OSError) or ERROR_NUMBER.search(str(error)) is not None


def barrier() -> ocp.multihost.BarrierSyncFn | None:
    """Returns the barrier at which Orbax's threads of all processes wait for each other, or None for one process.

    Orbax enters its own barrier even if this process could not write its part, and reports that failure only when the
    barrier times out after ten minutes. With this barrier it does so at once, and another process's is `PeerLost`.
    """
    if jax.process_count() == 1:
        return None
    barrier = ocp.multihost.get_barrier_sync_fn()

    def barrier_unless_failed(*, key: str, timeout_ms: int) -> None:
        error = sys.exc_info()[1]  # the failure that the thread is handling
        if error is not None:
            raise error
        try:
            barrier(key=key, timeout_ms=timeout_ms)
        except jax.errors.JaxRuntimeError as lost:
            why = f"another process has not written its part of a checkpoint ({reason_of(lost)})"
            raise PeerLost(f"{why}; the same launch resumes from the last checkpoint") from lost

    return barrier_unless_failed


def report_failures_once() -> None:
    """Makes sure that a failed write is reported once, by the exception that is raised.

    Orbax also logs the failure, with a traceback from each of its threads. It stops waiting at the first array that
    fails, so asyncio reports the other failures as never retrieved, and TensorStore finds the event loop closed when it
    delivers them, or leaves writes that never began. All of that only repeats the exception. Orbax's advice to save
    less often is suppressed too, because it counts waits that the caller asked for.
    """
    for name in ("absl", "asyncio"):  # Orbax logs through absl
        logging.getLogger(name).addFilter(_is_news)  # adding a filter a second time has no effect
    warnings.filterwarnings("ignore", r"coroutine 'async_serialize.*' was never awaited", RuntimeWarning)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _report_unraisable


def _report_unraisable(unraisable: Any) -> None:
    if repr(unraisable.exc_value) != "RuntimeError('Event loop is closed')":
        sys.__unraisablehook__(unraisable)


def _is_news(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return not str(record.msg).startswith("Waiting for previous save to complete")
    return not is_of_storage(error) and f"{os.sep}orbax{os.sep}" not in record.pathname
