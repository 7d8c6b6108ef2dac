"""The layers of many sentences, embedded once and kept on disk, and rows of them by word.

Shapes: N words, n words of a chunk, T words of a sentence, L LSTM layers, P projection of the biLM, S numbers stored
per word (`elmo_jax.tasks.elmo_vectors`), M layers and F numbers of each that an analysis sees.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.tasks.elmo_vectors import Layers, make, unpacked

WORDS_PER_FILE = 100_000  # what a killed process may have to embed again
ROWS = 8_192  # words of a chunk

Words = tuple[str, ...]
DType = Literal["float16", "float32"]
View = Callable[[jax.Array], jax.Array]  # what an analysis sees: [n, L+1, 2P] -> [n, M, F]


class Speed(NamedTuple):
    """What was embedded by this process, and how long that took.

    Attributes:
      words: those that were not on disk.
      seconds: for these words.
    """

    words: int
    seconds: float

    def __str__(self) -> str:
        """For a person to read."""
        if not self.words:
            return "all vectors were on disk"
        rate = self.words / self.seconds
        return f"embedded {self.words:,} words in {self.seconds:,.0f} s: {rate:,.0f} words per second"


class Vectors:
    """The layers of some sentences.

    Attributes:
      projection: P of the biLM.
      layers: the number of vectors per word, L + 1.
      speed: what was embedded to make them.
    """

    def __init__(self, stored: Layers, projection: int, layers: int, speed: Speed) -> None:
        """Takes the files that `embed` made."""
        self._stored, self.projection, self.layers, self.speed = stored, projection, layers, speed

    def stored(self, words: Sequence[str]) -> np.ndarray:
        """[T, S] of a sentence, as the files have them. Raises `KeyError` for a sentence they were not made of."""
        return self._stored[words]

    def chunks(self, sentences: Sequence[Words]) -> Iterator[np.ndarray]:
        """[n, S] of all words in their order; n is `ROWS` but for the last chunk."""
        waiting: list[np.ndarray] = []
        count = 0
        for words in filter(None, sentences):
            vectors = self.stored(words)
            while count + len(vectors) >= ROWS:
                cut = ROWS - count
                yield np.concatenate([*waiting, vectors[:cut]])
                waiting, count, vectors = [], 0, vectors[cut:]
            waiting.append(vectors)
            count += len(vectors)
        if count:
            yield np.concatenate(waiting)

    def rows(self, sentences: Sequence[Words], view: View, dtype: DType = "float16") -> np.ndarray:
        """[N, M, F] of all words in their order, in what `view` sees of the layers."""
        found = [np.asarray(part, dtype) for part in self.seen(sentences, view)]
        return np.concatenate(found)

    def seen(self, sentences: Sequence[Words], view: View) -> Iterator[np.ndarray]:
        """[n, M, F] float32 of the words of each chunk, in what `view` sees of the layers."""
        for chunk in self.chunks(sentences):
            filled = np.pad(chunk, ((0, ROWS - len(chunk)), (0, 0)))  # one shape, so one program
            yield np.asarray(_see(view, self.projection, filled))[: len(chunk)]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _see(view: View, projection: int, stored: np.ndarray) -> jax.Array:
    """[n, S] -> [n, M, F]."""
    layers = unpacked(jnp.asarray(stored)[None], projection)[0]  # [L+1, n, 2P]
    return view(jnp.moveaxis(layers, 0, 1))


@functools.cache
def one_layer(layer: int) -> View:
    """The view of one layer: M is 1, F is 2P. One object per layer, so that its program is compiled once."""
    return lambda layers: layers[:, layer : layer + 1]


def all_layers(layers: jax.Array) -> jax.Array:
    """The view of all layers apart: M is L + 1, F is 2P."""
    return layers


def side_by_side(layers: jax.Array) -> jax.Array:
    """The view of all layers as one vector: M is 1, F is (L + 1) 2P."""
    return layers.reshape(len(layers), 1, -1)


def top_addition(layers: jax.Array) -> jax.Array:
    """The view of what the last LSTM layer adds to its input, with a skip connection: M is 1, F is 2P."""
    return layers[:, -1:] - layers[:, -2:-1]


def embed(folder: Path, bilm: EmbeddingBiLM, sentences: Sequence[Words], dtype: DType = "float16") -> Vectors:
    """The layers of some sentences, each read from a zero state.

    What is on disk is not embedded again by a later process. After a process that was killed, no more than about the
    100,000 words of the file that it was making are embedded again.

    Args:
      folder: where the vectors are kept; it takes 2 bytes per number with float16.
      bilm: the frozen biLM.
      sentences: each distinct one is embedded once.
      dtype: of the numbers in the files.

    Raises:
      UserError: a file cannot be written, is not whole, or a number is too large for float16.
    """
    distinct = sorted({words for words in sentences if words}, key=lambda words: (len(words), words))
    files, new, seconds = [], 0, 0.0
    for part in _parts(distinct):
        before, start = _files(folder), time.perf_counter()
        files.append(make(folder, bilm, part, dtype))
        if _files(folder) != before:
            new += sum(map(len, part))
            seconds += time.perf_counter() - start
    lstm = bilm.config.lstm
    return Vectors(Layers(files), lstm.projection, lstm.layers + 1, Speed(new, seconds))


def _files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.layers")}


def _parts(sentences: Sequence[Words]) -> Iterator[list[Words]]:
    """Sentences of similar length, about `WORDS_PER_FILE` words together."""
    part: list[Words] = []
    count = 0
    for words in sentences:
        part.append(words)
        count += len(words)
        if count >= WORDS_PER_FILE:
            yield part
            part, count = [], 0
    if part:
        yield part
