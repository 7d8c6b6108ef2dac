"""What Orbax and TensorStore raise and log when a file cannot be written, in words for a person."""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
import time
import warnings
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

_NUMBER = re.compile(r"os_error_code='(\d+)'")  # TensorStore's way to tell the operating system's error


def is_of_storage(error: BaseException) -> bool:
    """Whether the operating system refused a file operation (no space left, no permission, …)."""
    return isinstance(error, OSError) or _NUMBER.search(str(error)) is not None


def reason(error: BaseException) -> str:
    """The operating system's words for what went wrong, where the error has its number; else its own first line."""
    number = _NUMBER.search(str(error))
    if number:
        return os.strerror(int(number[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def remove_while_written(directory: epath.Path, prefix: str) -> None:
    """Removes the folders whose names begin with `prefix`, left by a failed save.

    TensorStore may still be writing other arrays into them, and makes them again: so until they stay away, 2 seconds
    at most. What comes after that is cleared away by the next launch.
    """
    quiet, deadline = 0, time.monotonic() + 2
    while quiet < 3 and time.monotonic() < deadline:
        found = [path for path in directory.iterdir() if path.name.startswith(prefix)] if directory.exists() else []
        quiet = 0 if found else quiet + 1
        for path in found:
            try:
                path.rmtree()
            except OSError:  # a file came in between; the next round sees it
                pass
        time.sleep(0.05)
    gc.collect()  # the coroutines that waited for those arrays: while modules are there for them to end with


def barrier() -> ocp.multihost.BarrierSyncFn | None:
    """What Orbax's threads of all processes meet with; None for a process that is alone.

    Orbax goes to meet the others also where its own part could not be written, and would say so only when these have
    not come for ten minutes. With this one it says so at once.
    """
    if jax.process_count() == 1:
        return None
    meet = ocp.multihost.get_barrier_sync_fn()

    def meet_unless_failed(*, key: str, timeout_ms: int) -> None:
        error = sys.exc_info()[1]  # on its way through the thread
        if error is not None:
            raise error
        meet(key=key, timeout_ms=timeout_ms)

    return meet_unless_failed


def tell_once() -> None:
    """A failed write is told once, by the exception that is raised.

    Orbax logs it too, with a traceback from each of its threads. And it stops waiting at the first array that fails, so
    asyncio reports the other failures as never retrieved, and TensorStore finds the event loop closed when it wants
    to deliver them, or leaves writes it never began. None of that is news beside the exception, and neither is Orbax's
    advice to save less often, which counts the waits that the caller asked for. All else is reported as before.
    """
    for name in ("absl", "asyncio"):  # Orbax logs through absl
        logging.getLogger(name).addFilter(_is_news)  # a filter that is there already is not added again
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
