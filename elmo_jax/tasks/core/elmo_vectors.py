"""Computes the frozen layers of a biLM for the sentences of a task once, and keeps them in memory-mapped files.

Shapes: N sentences, T words of a sentence, P dimension of the biLM's projection, L LSTM layers, S = P + L * 2P stored
numbers per word. The S numbers are the token vector once, and then the forward and the backward output of each layer.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from elmo_jax.config import ModelConfig
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.errors import UserError
from elmo_jax.files import atomic_file, one_at_a_time

BATCH, BATCH_WORDS = 64, 8_192  # the largest batch, in sentences and in words with padding
_LOCK = ".layers.lock"  # held by the process that writes into the folder

Sentence = tuple[str, ...]


class LayersFile:
    """The stored layers of some sentences."""

    def __init__(self, path: Path, sentences: Sequence[Sentence], size: int, dtype: str) -> None:
        """Opens a file that `make` wrote for these sentences in this order."""
        lengths = np.array([len(sentence) for sentence in sentences], np.int64)
        ends = np.cumsum(lengths)
        self._starts = dict(zip(sentences, (ends - lengths).tolist(), strict=True))
        shape = (int(ends[-1]) if len(ends) else 0, size)
        self._vectors = np.memmap(path, dtype, "r", shape=shape) if shape[0] else np.zeros(shape, dtype)

    def __getitem__(self, sentence: Sequence[str]) -> np.ndarray:
        """Returns the numbers of a sentence, [T, S]. Raises `KeyError` if the file does not have the sentence."""
        key = tuple(sentence)
        start = self._starts[key]
        return self._vectors[start : start + len(key)]

    def __contains__(self, sentence: Sequence[str]) -> bool:
        return tuple(sentence) in self._starts


class StoredLayers:
    """The stored layers of the sentences of several files."""

    def __init__(self, files: Sequence[LayersFile]) -> None:
        """Keeps the files in the order in which they are searched."""
        self._files = files

    def __getitem__(self, sentence: Sequence[str]) -> np.ndarray:
        """Returns the numbers of a sentence, [T, S]. Raises `KeyError` if no file has it."""
        for file in self._files:
            if sentence in file:
                return file[sentence]
        raise KeyError(" ".join(sentence))


def stored_size(config: ModelConfig) -> int:
    """Returns S, the number of stored numbers per word."""
    return config.lstm.projection * (1 + 2 * config.lstm.layers)


def unpacked(stored: jax.Array, projection: int) -> jax.Array:
    """Maps stored numbers [B, T, S] to layers [B, L+1, T, 2P] in float32; layer 0 is the token vector twice."""
    stored = stored.astype(jnp.float32)
    token, layers = stored[..., :projection], stored[..., projection:]
    layers = layers.reshape(*layers.shape[:-1], -1, 2 * projection)  # [B, T, L, 2P]
    both = jnp.concatenate([jnp.tile(token, 2)[..., None, :], layers], axis=-2)
    return jnp.moveaxis(both, -2, 1)


def packed(layers: np.ndarray) -> np.ndarray:
    """Maps the layers [L+1, T, 2P] of `EmbeddingBiLM.embed` to numbers to store, [T, S]."""
    projection = layers.shape[-1] // 2
    return np.concatenate([layers[0, :, :projection], *layers[1:]], axis=-1)


def make(folder: Path, bilm: EmbeddingBiLM, sentences: Iterable[Sequence[str]], dtype: str) -> LayersFile:
    """Opens the file with the layers of some sentences, and computes them first if there is no such file.

    A file's name depends on the biLM, which reads every sentence from a zero state, the type of the numbers ("float16"
    or "float32") and the distinct sentences, so a file is never taken for another one.

    Raises:
      UserError: the file cannot be written or is incomplete, or a number is too large for float16.
    """
    distinct = sorted({tuple(sentence) for sentence in sentences if len(sentence)})
    digest = hashlib.sha256()
    for sentence in distinct:
        digest.update(("\n".join(sentence) + "\0").encode("utf-8", "surrogatepass"))
    words = sum(map(len, distinct))
    job = {
        "bilm": bilm.fingerprint,
        "precision": bilm.precision.value,
        "dtype": dtype,
        "sentences": len(distinct),
        "words": words,
        "sentences_sha256": digest.hexdigest(),
    }
    name = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:24]
    path = folder / f"{name}.layers"  # complete if it exists
    size = stored_size(bilm.config)
    expected = words * size * np.dtype(dtype).itemsize
    if not path.is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with one_at_a_time(folder / _LOCK):
                if not path.is_file():  # another process may have written it in the meantime
                    with atomic_file(path) as temporary:
                        _write(temporary, bilm, distinct, size, dtype)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error
    if path.stat().st_size != expected:
        raise UserError(f"{path}: does not have the {expected:,} bytes that were written; delete the folder {folder}")
    return LayersFile(path, distinct, size, dtype)


def _write(path: Path, bilm: EmbeddingBiLM, sentences: Sequence[Sentence], size: int, dtype: str) -> None:
    """Embeds batches of sentences of similar length, and writes each sentence to its place in the file."""
    starts = np.cumsum([0, *map(len, sentences)])
    if not starts[-1]:
        path.touch()
        return
    with path.open("wb") as empty:  # a write to a memory map for which the disk has no room would kill the process
        os.posix_fallocate(empty.fileno(), 0, int(starts[-1]) * size * np.dtype(dtype).itemsize)
    file = np.memmap(path, dtype, "r+", shape=(int(starts[-1]), size))
    interval = 0.5 if sys.stderr.isatty() else 30.0
    with tqdm(total=int(starts[-1]), desc="embedding", unit=" words", mininterval=interval, unit_scale=True) as bar:
        for rows in _batches(sentences):
            layers, _, _ = bilm.embed([sentences[row] for row in rows])
            for row, found in zip(rows, layers, strict=True):
                length = len(sentences[row])
                vectors = packed(found[:, :length]).astype(dtype)
                if not np.isfinite(vectors).all():
                    raise UserError(
                        f"a vector of {sentences[row]!r} is too large for {dtype}; set config.elmo.dtype=float32"
                    )
                file[starts[row] : starts[row] + length] = vectors
                bar.update(length)
    file.flush()


def _batches(sentences: Sequence[Sentence]) -> Iterator[list[int]]:
    order = sorted(range(len(sentences)), key=lambda row: len(sentences[row]))
    while order:
        rows = order[:BATCH]
        while len(rows) > 1 and len(rows) * len(sentences[rows[-1]]) > BATCH_WORDS:
            rows.pop()
        order = order[len(rows) :]
        yield rows
