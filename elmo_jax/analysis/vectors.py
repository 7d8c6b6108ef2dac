"""Embeds many sentences once, keeps their layers on disk, and reads them back word by word.

Shapes: N words, n words of a chunk, T words of a sentence, L LSTM layers, P dimension of the biLM's projection, S
stored numbers per word (`tasks.core.elmo_vectors`), M layers of an analysis, F numbers per layer of an analysis.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from elmo_jax.config import ModelConfig
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.tasks.core.elmo_vectors import StoredLayers, make, unpacked

ROWS = 8_192  # the number of words per chunk

Words = tuple[str, ...]
DType = Literal["float16", "float32"]
View = Callable[[jax.Array], jax.Array]  # selects the layers of an analysis: [n, L+1, 2P] -> [n, M, F]


class Speed(NamedTuple):
    """The amount of text that this process embedded, and the time that it took."""

    words: int  # the number of words that were not on disk
    seconds: float  # the time for these words

    def __str__(self) -> str:
        if not self.words:
            return "all vectors were on disk"
        rate = self.words / self.seconds
        return f"embedded {self.words:,} words in {self.seconds:,.0f} s: {rate:,.0f} words per second"


class Vectors:
    """The layers of some sentences.

    Attributes:
      config: the architecture of the biLM.
      layers: the number of vectors per word, L + 1.
      speed: the speed at which the missing vectors were embedded.
    """

    def __init__(self, stored: StoredLayers, config: ModelConfig, speed: Speed) -> None:
        self._stored, self.config, self.layers, self.speed = stored, config, config.lstm.layers + 1, speed

    def stored(self, words: Sequence[str]) -> np.ndarray:
        """Returns the stored numbers [T, S] of a sentence. Raises `KeyError` for a sentence that was not embedded."""
        return self._stored[words]

    def chunks(self, sentences: Sequence[Words]) -> Iterator[np.ndarray]:
        """Yields the stored numbers [n, S] of all words in order; n is `ROWS` except in the last chunk."""
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
        """Returns the layers that `view` selects, [N, M, F], for all words in order."""
        chunks = [np.asarray(part, dtype) for part in self.seen(sentences, view)]
        return np.concatenate(chunks)

    def seen(self, sentences: Sequence[Words], view: View) -> Iterator[np.ndarray]:
        """Yields the layers that `view` selects, float32 [n, M, F], for the words of each chunk."""
        for chunk in self.chunks(sentences):
            filled = np.pad(chunk, ((0, ROWS - len(chunk)), (0, 0)))  # one shape, so that one program is compiled
            yield np.asarray(_see(view, self.config, filled))[: len(chunk)]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _see(view: View, config: ModelConfig, stored: np.ndarray) -> jax.Array:
    """Maps stored numbers [n, S] to the layers that `view` selects, [n, M, F]."""
    layers = unpacked(jnp.asarray(stored)[None], config)[0]  # [L+1, n, 2P]
    return view(jnp.moveaxis(layers, 0, 1))


@functools.cache
def one_layer(layer: int) -> View:
    """Returns the view of one layer, always the same object, so that its program is compiled once; M is 1, F is 2P."""
    return lambda layers: layers[:, layer : layer + 1]


def all_layers(layers: jax.Array) -> jax.Array:
    """Selects all layers separately: M is L + 1, F is 2P."""
    return layers


def side_by_side(layers: jax.Array) -> jax.Array:
    """Concatenates all layers to one vector: M is 1, F is (L + 1) 2P."""
    return layers.reshape(len(layers), 1, -1)


def top_addition(layers: jax.Array) -> jax.Array:
    """Selects what the last LSTM layer adds to its input over the skip connection: M is 1, F is 2P."""
    return layers[:, -1:] - layers[:, -2:-1]


def embed(folder: Path, bilm: EmbeddingBiLM, sentences: Sequence[Words], dtype: DType = "float16") -> Vectors:
    """Returns the layers of some sentences, each read from a zero state.

    Vectors on disk are not computed again by later processes. If a process is killed, only the words of the file that
    it was writing are embedded again, about 100,000.

    Args:
      folder: the folder in which the vectors are kept; float16 takes 2 bytes per number.
      bilm: the frozen biLM.
      sentences: the sentences, each of which is embedded once, even if it occurs several times.
      dtype: the type of the numbers in the files.

    Raises:
      UserError: a file cannot be written or is incomplete, or a number is too large for float16.
    """
    made = make(folder, bilm, sentences, dtype)
    return Vectors(StoredLayers(made.files), bilm.config, Speed(made.words, made.seconds))
