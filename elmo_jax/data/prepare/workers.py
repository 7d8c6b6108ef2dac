"""Calls a function in several processes, and returns the results in order.

The queue of results has one bit per call, and the results themselves are files: a worker that is killed while it sends
a long result would leave a part of it in the queue, and the main process would wait for the rest forever.
"""

import collections
import json
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from elmo_jax.errors import UserError

Job = TypeVar("Job")


class RunnerFailed(UserError):
    """The text could not be worked on, through no mistake in it; what was done is kept."""


def in_processes(
    function: Callable[[Job], Any], jobs: Iterable[Job], workers: int, folder: Path
) -> Iterator[tuple[Job, Any]]:
    """Calls a function for each job in `workers` processes.

    Args:
      function: the function, whose results can be written as JSON.
      jobs: the jobs.
      workers: the number of processes.
      folder: the folder for the files of the results, which are deleted.

    Yields:
      Each job in order, with its result.

    Raises:
      RunnerFailed: a worker died.
    """
    first = list(islice(jobs := iter(jobs), 2))
    if workers == 1 or len(first) < 2:  # starting processes would take longer than a small text
        for job in chain(first, jobs):
            yield job, function(job)
        return
    # Processes are spawned, since a fork of a process with threads (JAX's) may hang.
    context = multiprocessing.get_context("spawn")
    # After Ctrl-C, Python's resource tracker deletes the pool's semaphores, which deserves no warning.
    sys.warnoptions.append("ignore:resource_tracker")
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker)
    waiting: collections.deque[tuple[Job, Path, Future[None]]] = collections.deque()

    def next_result() -> tuple[Job, Any]:
        job, path, future = waiting.popleft()
        future.result()
        result = json.loads(path.read_bytes())
        path.unlink()
        return job, result

    try:
        multiprocessing.resource_tracker.ensure_running()  # starting it would unblock Ctrl-C
        for number, job in enumerate(chain(first, jobs)):
            path = folder / f"{number}.result"
            waiting.append((job, path, _submitted(pool, function, job, path)))
            if len(waiting) > 2 * workers:  # bounds the memory for jobs
                yield next_result()
        while waiting:
            yield next_result()
    except BrokenProcessPool:
        raise RunnerFailed("a worker process died, perhaps for lack of memory; try --workers 1") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _call(function: Callable[[Job], Any], job: Job, path: Path) -> None:
    path.write_text(json.dumps(function(job)), encoding="utf-8")


def _submitted(pool: ProcessPoolExecutor, *call: Any) -> Future[None]:
    """Submits a call, which may start a worker; it inherits that Ctrl-C is blocked: the main process handles it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(_call, *call)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _start_worker() -> None:
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
