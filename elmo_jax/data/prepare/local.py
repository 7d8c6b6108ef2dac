"""Runs the steps of `prepare` on this machine: tokenizes and writes in several processes, and counts words in one.

Memory holds the distinct words with their counts and ids, and a summary per chunk (`chunk_files`), however long the
text is.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from elmo_jax.data.lexicon import Entry, order_of
from elmo_jax.data.prepare.chunk_files import Sizes, Summary, count_words, read_chunk, write_chunk, write_ids
from elmo_jax.data.prepare.pieces import Part
from elmo_jax.data.prepare.text import Chunk
from elmo_jax.data.prepare.units import Planned
from elmo_jax.data.prepare.workers import in_processes
from elmo_jax.runs.progress import Progress

Item = TypeVar("Item")


class LocalRunner:
    """Runs the steps on this machine; the results of no runner depend on processes and their order."""

    def __init__(self, folder: Path, workers: int, show: bool) -> None:
        """Makes a runner with `workers` processes; `folder` is for the files of the chunks."""
        self._folder, self._workers, self._show = folder, workers, show
        self._counts: dict[str, int] = {}

    def map(self, function: Callable[[Item], Any], items: Iterable[Item], workers: int | None = None) -> Iterator[Any]:
        """Yields the results of a function, values of JSON, in order; `workers` are the most processes."""
        return (result for _, result in in_processes(function, items, workers or self._workers, self._folder))

    def tokenize(self, parts: Iterable[Part], size: int) -> Iterator[Summary]:
        """Tokenizes all chunks, and yields their summaries in order; `size` bytes are read from files."""
        chunks = (chunk for part in parts for chunk in part.chunks())
        part, on_disk = (0, 0), 0
        with Progress("reading the text", "words", size, self._show) as bar:
            jobs = in_processes(functools.partial(_tokenized, self._folder), chunks, self._workers, self._folder)
            for chunk, (result, was_there) in jobs:
                summary = Summary.of_json(result)
                if chunk.key[:2] != part:
                    part, on_disk = chunk.key[:2], 0
                (bar.skip if was_there else bar.add)(summary.words, chunk.read - on_disk)
                on_disk = chunk.read
                yield summary

    def count(self, chunks: Sequence[Planned], given: Sequence[str]) -> list[Sizes]:
        """Counts the words of the training text, of which those of `given` come first, and returns the sizes."""
        self._counts, self._order, all_sizes = dict.fromkeys(given, 0), order_of(given), []
        with Progress("counting the words", "chunks", len(chunks), self._show) as bar:
            for chunk in chunks:
                types, counts, sizes = count_words(self._folder, chunk)
                for word, count in zip(types, counts.tolist(), strict=True):
                    self._counts[word] = self._counts.get(word, 0) + count
                all_sizes.append(sizes)
                bar.add(1)
        return all_sizes

    def entries(self) -> Iterable[Entry]:
        """Returns all words with their counts, in the order of the lexicon."""
        return sorted(self._counts.items(), key=self._order)

    def number(self, chunks: Sequence[Planned]) -> None:
        """Writes the ids of the words of every chunk."""
        ids = {word: number for number, (word, _) in enumerate(self.entries())}
        for chunk in chunks:
            words = read_chunk(self._folder, chunk.key).types
            write_ids(self._folder, chunk.key, np.array([ids[word] for word in words], np.int32))


def _tokenized(folder: Path, chunk: Chunk) -> tuple[Summary, bool]:
    return write_chunk(chunk, folder)
