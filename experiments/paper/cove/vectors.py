"""Computes CoVe, and looks like a biLM to the scripts of the tables.

Shapes: B sentences, T words of the longest one, D numbers per word vector, H units per direction of the encoder.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from cove.model import Encoder
from elmo_jax.checkpoints.layout import fingerprint, unflatten
from elmo_jax.config import LSTMConfig, ModelConfig
from elmo_jax.errors import UserError
from elmo_jax.files import write_bytes
from elmo_jax.model.precision import Precision
from elmo_jax.tasks.core.vocabulary import read_vectors
from elmo_jax.types import Tree

NAME = "cove.safetensors"  # the file in the workdir of train.py
_KEY = "cove"  # of the metadata
_ROWS, _STEPS = 64, 16  # sentences and words are padded to multiples of these, so that few programs are compiled


@dataclasses.dataclass(frozen=True, eq=False)
class CoVe:
    """A trained encoder and the word vectors that it reads.

    It has what scripts and tasks read of a frozen biLM; of its `config`, only the sizes of the LSTMs have a meaning.
    """

    params: Tree  # the parameters of `Encoder`
    glove: str  # the path of the word vectors, or the name of packaged ones
    vectors_fingerprint: str  # the fingerprint of the whole translation model
    precision: Precision = Precision.FLOAT32
    language: str = "en"

    @property
    def config(self) -> ModelConfig:
        size = len(self.params["layer_1"]["forward"]["bias"]) // 4
        return ModelConfig(lstm=LSTMConfig(cells=size, projection=size, skip_connections=False))

    @functools.cached_property
    def _vectors(self) -> dict[str, np.ndarray]:
        vectors = read_vectors(self.glove)
        expected = len(self.params["layer_1"]["forward"]["kernel"]) - self.config.lstm.projection
        if (dim := len(next(iter(vectors.values())))) != expected:
            raise UserError(f"{self.glove}: has vectors of {dim} numbers, but CoVe was trained with {expected}")
        return vectors

    def embed(self, sentences: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray, Tree]:
        """Returns the layers of sentences, each of which depends on its sentence alone, their mask, and an empty carry.

        The layers are float32 [B, 3, T, 2H], zero beyond the end of a sentence: the word's vector twice, filled up with
        zeros, and the encoder's layers, forward units first. The mask, bool [B, T], is true on words.
        """
        size, length = self.config.lstm.projection, max(map(len, sentences), default=0)
        rows, steps = -(-len(sentences) // _ROWS) * _ROWS, -(-max(length, 1) // _STEPS) * _STEPS
        words, mask = look_up(self._vectors, sentences, rows, steps)
        token = np.tile(np.pad(words, ((0, 0), (0, 0), (0, size - words.shape[2]))), 2)
        layers = np.stack([token, *_encode(size, self.params, words, mask)], axis=1)
        return layers[: len(sentences), :, :length], mask[: len(sentences), :length], {}

    engine = property(lambda self: self)  # what computes the vectors that tasks store; see `embedding.engine.Engine`
    most_words = 2**16

    def groups(self, lengths: np.ndarray, carried: bool) -> list[np.ndarray]:
        return np.split(order := np.argsort(lengths), range(_ROWS, len(order), _ROWS))

    def start(self, sentences: Sequence[Sequence[str]], dtype: str, weights: None = None, carry: None = None) -> Any:
        layers, mask, _ = self.embed(sentences)
        both = np.swapaxes(layers, 1, 2)[mask].reshape(mask.sum(), layers[:1, :, :1].size)  # the word's vector twice
        vectors = both[:, self.config.lstm.projection :].astype(dtype)
        return SimpleNamespace(vectors=lambda: (vectors, np.isfinite(vectors).all(1)))


@functools.partial(jax.jit, static_argnums=0)
def _encode(size: int, params: Tree, words: jax.Array, mask: jax.Array) -> Any:
    return Encoder(size).apply({"params": params}, words, mask)


def look_up(
    vectors: Mapping[str, np.ndarray], sentences: Sequence[Sequence[str]], rows: int, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vectors of words, which are looked up as they are and then in lower case, and where words are.

    The results are float32 [rows, steps, D], zero for words without a vector and at padding, and bool [rows, steps].
    """
    table = np.zeros((rows, steps, len(next(iter(vectors.values())))), np.float32)
    mask = np.zeros((rows, steps), bool)
    for row, words in enumerate(sentences):
        mask[row, : len(words)] = True
        for step, word in enumerate(words):
            table[row, step] = vectors.get(word, vectors.get(word.lower(), 0.0))
    return table, mask


def write(path: Path, arrays: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Writes arrays, and metadata, which are JSON values, as a safetensors file."""
    on_host = {name: np.asarray(array) for name, array in arrays.items()}
    text = json.dumps({**metadata, "fingerprint": fingerprint(on_host)})
    write_bytes(path, safetensors.numpy.save(on_host, {_KEY: text}))


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the arrays and the metadata of `write`, with their `fingerprint`; `UserError` for a damaged file."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            metadata = json.loads((file.metadata() or {})[_KEY])
            arrays = {name: file.get_tensor(name) for name in file.keys()}
        if fingerprint(arrays) != metadata["fingerprint"]:
            raise ValueError("its numbers have changed")
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise UserError(f"{path}: not a file of cove/train.py, or damaged ({error}); delete it, and train") from None
    return arrays, metadata


def open_cove(source: str) -> CoVe | None:
    """Returns the model in a workdir of train.py; None for a path that is none. Raises `UserError` as `read`."""
    path = Path(source) / NAME
    if not path.is_file():
        return None
    arrays, metadata = read(path)
    return CoVe(unflatten(arrays)["encoder"], metadata["glove"], metadata["fingerprint"])
