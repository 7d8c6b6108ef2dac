"""Tokenizes in several processes, and returns the results in order."""

import collections
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain, islice

from elmo_jax.data.prepare.text import Chunk, Tokenized, tokenize


def tokenize_all(chunks: Iterable[Chunk], workers: int) -> Iterator[tuple[Chunk, Tokenized]]:
    """Tokenizes chunks in `workers` processes, and yields each chunk with its result in the order of the chunks."""
    chunks = iter(chunks)
    first = list(islice(chunks, 2))
    if workers == 1 or len(first) < 2:  # starting processes would take longer than tokenizing a small text
        for chunk in chain(first, chunks):
            yield chunk, tokenize(chunk)
        return
    # Processes are spawned, since a fork of a process with threads (JAX's) may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker)
    waiting: collections.deque[tuple[Chunk, Future[Tokenized]]] = collections.deque()
    try:
        multiprocessing.resource_tracker.ensure_running()  # starting it would unblock Ctrl-C
        for chunk in chain(first, chunks):
            waiting.append((chunk, _submitted(pool, chunk)))
            if len(waiting) > 2 * workers:  # bounds the memory for chunks and results
                chunk, future = waiting.popleft()
                yield chunk, future.result()
        while waiting:
            chunk, future = waiting.popleft()
            yield chunk, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _submitted(pool: ProcessPoolExecutor, chunk: Chunk) -> Future[Tokenized]:
    """Submits a chunk, which may start a worker; it inherits that Ctrl-C is blocked: the main process handles it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(tokenize, chunk)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _start_worker() -> None:
    """Makes a worker end when the main process is killed."""
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
