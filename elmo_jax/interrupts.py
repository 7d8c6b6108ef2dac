"""Ends a command within a second of Ctrl-C, SIGTERM or SIGHUP, whatever its threads are doing.

Python raises `KeyboardInterrupt` when the main thread returns from C code, which takes minutes while XLA compiles, and
ignores it in a callback of JAX. And an interpreter that ends while XLA's threads still compile may crash. So a thread
that the signal itself wakes up ends the process without shutting down the interpreter. The signals that make a
training save its state and stop are in `runs.stop_signals`.
"""

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

SAME_SECONDS = 1.0  # a second signal within this time counts as the first one, which launchers often forward twice
_GRACE_SECONDS = 0.4  # for `finally` clauses, which release locks and delete temporary files
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_leaving = threading.Lock()
_received: signal.Signals | None = None  # the signal that ends this process
acknowledged: set[int] = set()  # the signals after which the work in progress is saved; of `runs.stop_signals`
_temporary: set[str] = set()  # what is deleted when the process ends without its `finally` clauses
_kept: Path | None = None  # the folder of the work that the next command continues


def end_on_interrupt() -> None:
    """Makes Ctrl-C, SIGTERM and SIGHUP end this process with one line and status 128 plus the signal's number.

    `KeyboardInterrupt` is raised in place of the work that is in progress, so that temporary files are deleted, but the
    process ends after `_GRACE_SECONDS` in any case. A context of `runs.stop_signals.StopSignals`, in which a training
    saves, takes the first signal for itself. A signal that is ignored, as SIGINT in a background job of a shell or
    SIGHUP under nohup, stays ignored. This must be called in the main thread.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    threading.Thread(target=_watch, args=(read,), daemon=True).start()
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raises `KeyboardInterrupt` once, and silences what the work in progress prints about it."""
    global _received
    signal.signal(number, signal.SIG_IGN)
    while frame is not None:  # an exception in the middle of its initialization makes a C++ module such as JAX's crash
        if frame.f_code.co_qualname.startswith("ExtensionFileLoader."):
            leave_after(number)
        frame = frame.f_back
    _received = signal.Signals(number)
    sys.stderr = open(os.devnull, "w", encoding="utf-8")
    raise KeyboardInterrupt


def _watch(pipe: int) -> None:
    """Ends the process after an interrupt, or after a second signal while the work is being saved."""
    first: float | None = None
    while True:
        number = os.read(pipe, 1)[0]
        if number not in _ENDING and number not in acknowledged:  # such as SIGCHLD, for a handler of another package
            continue
        taken = signal.getsignal(number) not in (_interrupt, signal.SIG_IGN)
        if first is None and number in acknowledged:  # at once, also while the main thread is in C code
            _write_line(f"{signal.Signals(number).name} received: saving and stopping")
        first, before = first or time.monotonic(), first
        if not taken or (before is not None and time.monotonic() - before >= SAME_SECONDS):
            time.sleep(_GRACE_SECONDS)
            leave_after(number)


def received() -> signal.Signals | None:
    """Returns the signal that `end_on_interrupt` has received; None for none."""
    return _received


def leave_after(number: int) -> NoReturn:
    """Ends the process with the line and the status of a signal."""
    what = "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
    leave(what + kept(), 128 + number)


def leave(message: str, status: int) -> NoReturn:
    """Prints a line and ends the process at once, without the end of the interpreter."""
    if not _leaving.acquire(blocking=False):
        while True:  # another thread is ending the process
            time.sleep(1)
    for path in list(_temporary):
        _delete(path)
    _write_line(message)
    os._exit(status)


def keep(folder: Path) -> None:
    """Makes the line of a signal say that a folder has the work so far, if the folder is still there."""
    global _kept
    _kept = folder


def kept() -> str:
    """Returns the part of a line that says where the work so far is kept; empty if there is none."""
    if _kept is None or not _kept.exists() or any(_kept.is_relative_to(folder) for folder in _temporary):
        return ""
    size = 0
    for where, _, names in os.walk(_kept):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # workers rename their files
                size += os.path.getsize(os.path.join(where, name))
    return (
        f"; the work so far is kept in {_kept} ({size / 1e6:,.1f} MB): run the command again to continue, or delete it"
    )


def _write_line(message: str) -> None:
    live = "\n" if os.isatty(2) else ""  # not to continue a live line
    with contextlib.suppress(OSError):
        os.write(2, f"{live}elmo-jax: {message}\n".encode(errors="backslashreplace"))


@contextlib.contextmanager
def temporary(path: str) -> Iterator[None]:
    """A context after which a file or folder is deleted if it exists, also if an interrupt ends the process within."""
    _temporary.add(path)
    try:
        yield
    finally:
        _delete(path)
        _temporary.discard(path)


def _delete(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
    shutil.rmtree(path, ignore_errors=True)
