"""Tokenizes in several processes, which write one file per chunk, and returns the results in order.

A file appears completely or not at all, and begins with a checksum, so that a command that was stopped continues with
the files that it has finished. The queue of results has one bit per chunk: a worker that is killed while it sends a
long result would leave a part of it there, and the main process would wait for the rest forever.
"""

import collections
import contextlib
import io
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain, islice
from pathlib import Path

import numpy as np

from elmo_jax.data.prepare.text import Chunk, Tokenized, tokenize
from elmo_jax.errors import UserError

PIECE = ".piece"  # the suffix of the file of a chunk
_CHECKSUM_BYTES = 4


def tokenize_all(chunks: Iterable[Chunk], workers: int, folder: Path) -> Iterator[tuple[Chunk, Tokenized, bool]]:
    """Tokenizes chunks in `workers` processes.

    Args:
      chunks: the chunks.
      workers: the number of processes.
      folder: the folder for the files, which may have files of the same chunks already.

    Yields:
      Each chunk in order, with its result, and whether its file was there already.
    """
    jobs = ((chunk, folder / f"{number:08}{PIECE}") for number, chunk in enumerate(chunks))
    first = list(islice(jobs, 2))
    if workers == 1 or len(first) < 2:  # starting processes would take longer than tokenizing a small text
        for chunk, path in chain(first, jobs):
            was_there = _write_piece(chunk, path)
            yield chunk, read_piece(path), was_there
        return
    # Processes are spawned, since a fork of a process with threads (JAX's) may hang.
    context = multiprocessing.get_context("spawn")
    # After Ctrl-C, Python's resource tracker deletes the pool's semaphores, which deserves no warning.
    sys.warnoptions.append("ignore:resource_tracker")
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker)
    waiting: collections.deque[tuple[Chunk, Path, Future[bool]]] = collections.deque()
    try:
        multiprocessing.resource_tracker.ensure_running()  # starting it would unblock Ctrl-C
        for chunk, path in chain(first, jobs):
            waiting.append((chunk, path, _submitted(pool, chunk, path)))
            if len(waiting) > 2 * workers:  # bounds the memory for chunks
                chunk, path, future = waiting.popleft()
                was_there = future.result()
                yield chunk, read_piece(path), was_there
        for chunk, path, future in waiting:
            was_there = future.result()
            yield chunk, read_piece(path), was_there
    finally:
        pool.shutdown(cancel_futures=True)


def _write_piece(chunk: Chunk, path: Path) -> bool:
    """Tokenizes a chunk into a file, unless it is there and whole; returns whether it was."""
    with contextlib.suppress(FileNotFoundError, UserError):
        read_piece(path)
        return True
    found, content = tokenize(chunk), io.BytesIO()
    text = np.frombuffer("\n".join(found.types).encode(), np.uint8)
    counts = np.array([found.empty_lines, found.marks_dropped, found.replaced_lines], np.int64)
    for array in (text, found.ids, found.lengths, found.pieces, counts, np.array(found.unspaced, np.int64)):
        np.save(content, array)
    data = content.getvalue()
    temporary = path.with_suffix(f".{os.getpid()}")  # a worker of a command that was just killed may write it too
    temporary.write_bytes(zlib.crc32(data).to_bytes(_CHECKSUM_BYTES) + data)
    temporary.replace(path)
    return False


def read_piece(path: Path) -> Tokenized:
    """Returns the result of a chunk. Raises `UserError` if its file is damaged."""
    content = path.read_bytes()
    data = content[_CHECKSUM_BYTES:]
    if zlib.crc32(data).to_bytes(_CHECKSUM_BYTES) != content[:_CHECKSUM_BYTES]:
        raise UserError(f"{path}: damaged; run the command again")
    stream = io.BytesIO(data)
    text, ids, lengths, pieces, counts, unspaced = (np.load(stream, allow_pickle=False) for _ in range(6))
    types = text.tobytes().decode().split("\n") if len(ids) else []
    empty_lines, marks_dropped, replaced_lines = counts.tolist()
    return Tokenized(types, ids, lengths, pieces, empty_lines, marks_dropped, replaced_lines, unspaced.tolist())


def _submitted(pool: ProcessPoolExecutor, chunk: Chunk, path: Path) -> Future[bool]:
    """Submits a chunk, which may start a worker; it inherits that Ctrl-C is blocked: the main process handles it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(_write_piece, chunk, path)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _start_worker() -> None:
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
