"""Signals: ends a command within a second of Ctrl-C, SIGTERM or SIGHUP, or lets a training save its state and stop.

Python raises `KeyboardInterrupt` when the main thread returns from C code, which takes minutes while XLA compiles, and
ignores it in a callback of JAX. And an interpreter that ends while XLA's threads still compile may crash. So a thread
that the signal itself wakes up ends the process without shutting down the interpreter. In a context of `StopSignals`,
a training takes the first signal for itself.
"""

import contextlib
import dataclasses
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn, Self

SAME_SECONDS = 1.0  # a second signal within this time counts as the first one, which launchers often forward twice
_GRACE_SECONDS = 0.4  # for `finally` clauses, which release locks and delete temporary files
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Those after which a run saves: SIGHUP, when the terminal is closed, or a preemption; SIGUSR1, a scheduler's warning;
# SIGXCPU, the limit of CPU time.
_SAVING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU)
_leaving = threading.Lock()
_received: signal.Signals | None = None  # the signal that ends this process
_acknowledged: set[int] = set()  # the signals after which the work in progress is saved
_temporary: set[str] = set()  # what is deleted when the process ends without its `finally` clauses
_kept: Path | None = None  # the folder of the work that the next command continues


def end_on_interrupt() -> None:
    """Makes Ctrl-C, SIGTERM and SIGHUP end this process with one line and status 128 plus the signal's number.

    `KeyboardInterrupt` is raised in place of the work that is in progress, so that temporary files are deleted, but the
    process ends after `_GRACE_SECONDS` in any case. A signal that is ignored, as SIGINT in a background job of a shell
    or SIGHUP under nohup, stays ignored. This must be called in the main thread.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    threading.Thread(target=_watch, args=(read,), daemon=True).start()
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
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
        if number not in _ENDING and number not in _acknowledged:  # such as SIGCHLD, for a handler of another package
            continue
        taken = signal.getsignal(number) not in (_interrupt, signal.SIG_IGN)
        if first is None and number in _acknowledged:  # at once, also while the main thread is in C code
            _write_line(f"{signal.Signals(number).name} received: saving and stopping")
        first, before = first or time.monotonic(), first
        if not taken or (before is not None and time.monotonic() - before >= SAME_SECONDS):
            time.sleep(_GRACE_SECONDS)
            leave_after(number)


def end_of_command() -> None:
    """Ends the process if the command has been interrupted, and otherwise ignores Ctrl-C from now on."""
    if _received is not None:
        leave_after(_received)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is done, and the end of the interpreter is short


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
    return f"; the work so far is kept in {_kept}: run the command again to continue, or delete it"


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


class StopRequested(Exception):
    """The end of an evaluation because a process of the run has received the signal `signal`."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


@dataclasses.dataclass(frozen=True)
class Stopped:
    """A run that has saved its state after a signal."""

    signal: signal.Signals
    step: int  # the number of updates made


class StopSignals:
    """A context whose `received` is the first of `_SAVING`, or None; a second signal has its usual effect."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._first = 0.0  # when it was received

    def __enter__(self) -> Self:
        # An ignored SIGHUP, as under nohup, stays ignored.
        taken = [n for n in _SAVING if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
        self._old = {number: signal.signal(number, self._receive) for number in map(int, taken)}
        _acknowledged.update(self._old)
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._first = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._first >= SAME_SECONDS:
            signal.signal(number, self._old[number])
            signal.raise_signal(number)

    def __exit__(self, *_: object) -> None:
        _acknowledged.difference_update(self._old)
        for number, handler in self._old.items():
            signal.signal(number, handler)
