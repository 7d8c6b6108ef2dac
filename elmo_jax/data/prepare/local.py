"""Runs the steps of `prepare` on this machine: tokenizes and writes in several processes, and counts words in one.

Memory holds the distinct words with their counts and ids, and a summary per chunk (`chunk_files`), however long the
text is.
"""

import collections
import functools
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
from etils import epath

from elmo_jax.data.lexicon import Entry, order_of
from elmo_jax.data.prepare import chunk_files
from elmo_jax.data.prepare.pieces import Part
from elmo_jax.errors import UserError
from elmo_jax.runs.progress import Progress

Item = TypeVar("Item")
Result = TypeVar("Result")


class RunnerFailed(UserError):
    """The text could not be worked on, through no mistake in it; what was done is kept."""


class LocalRunner:
    """Runs the steps on this machine; the results of no runner depend on processes and their order."""

    def __init__(self, folder: epath.Path, workers: int, show: bool) -> None:
        self._folder, self._workers, self._show = folder, workers, show

    def map(self, function: Callable[[Item], Any], items: Iterable[Item], workers: int | None = None) -> Iterator[Any]:
        """Yields the results of a function, values of JSON, in order; `workers` are the most processes."""
        return (result for _, result in _in_processes(function, items, workers or self._workers))

    def tokenize(self, parts: Iterable[Part], size: int) -> Iterator[chunk_files.Summary]:
        """Tokenizes all chunks, and yields their summaries in order; `size` bytes are read from files."""
        chunks = (chunk for part in parts for chunk in part.chunks())
        part, on_disk, write = (0, 0), 0, functools.partial(chunk_files.write_chunk, folder=self._folder)
        with Progress("reading the text", "words", size, self._show) as bar:
            for chunk, (summary, was_there) in _in_processes(write, chunks, self._workers):
                if chunk.key[:2] != part:
                    part, on_disk = chunk.key[:2], 0
                (bar.skip if was_there else bar.add)(summary.words, chunk.read - on_disk)
                on_disk = chunk.read
                yield summary

    def count(self, chunks: Sequence[chunk_files.Planned], given: Sequence[str]) -> list[chunk_files.Sizes]:
        """Counts the words of the training text, of which those of `given` come first, and returns the sizes."""
        self._counts, self._order, all_sizes = dict.fromkeys(given, 0), order_of(given), []
        with Progress("counting the words", "chunks", len(chunks), self._show) as bar:
            for chunk in chunks:
                types, counts, sizes = chunk_files.count_words(self._folder, chunk)
                for word, count in zip(types, counts.tolist(), strict=True):
                    self._counts[word] = self._counts.get(word, 0) + count
                all_sizes.append(sizes)
                bar.add(1)
        return all_sizes

    def entries(self) -> Iterable[Entry]:
        return sorted(self._counts.items(), key=self._order)

    def number(self, chunks: Sequence[chunk_files.Planned]) -> None:
        ids = {word: number for number, (word, _) in enumerate(self.entries())}
        for chunk in chunks:
            words = chunk_files.read_chunk(self._folder, chunk.key).types
            numbers = np.array([ids[word] for word in words], np.int32)
            chunk_files.write_arrays(self._folder, chunk.key, chunk_files.IDS, numbers)


def _in_processes(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Iterator[tuple[Item, Result]]:
    """Yields each item in order, with the result of a function, which is called in `workers` processes.

    The results have to be short: a worker that is killed while a long one waits for room in the pipe would leave a part
    of it there, and this process would wait for the rest forever.
    """
    first = list(islice(items := iter(items), 2))
    if workers == 1 or len(first) < 2:  # starting processes would take longer than a small text
        for item in chain(first, items):
            yield item, function(item)
        return
    # After Ctrl-C, Python's resource tracker deletes the pool's semaphores, which deserves no warning.
    sys.warnoptions.append("ignore:resource_tracker")
    # Processes are spawned, since a fork of a process with threads (JAX's) may hang.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_end_with_parent)
    waiting: collections.deque[tuple[Item, Future[Result]]] = collections.deque()
    try:
        multiprocessing.resource_tracker.ensure_running()  # starting it would unblock Ctrl-C
        for item in chain(first, items):
            # A call may start a worker, which inherits that Ctrl-C is blocked: the main process handles it.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                waiting.append((item, pool.submit(function, item)))
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            if len(waiting) > 2 * workers:  # bounds the memory for items
                item, result = waiting.popleft()
                yield item, result.result()
        for item, result in waiting:
            yield item, result.result()
    except BrokenProcessPool:
        raise RunnerFailed("a worker process died, perhaps for lack of memory; try --workers 1") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    def wait() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
