"""Computes the frozen layers of a biLM for many sentences once, and keeps them in memory-mapped files.

Shapes: N sentences, T words of a sentence, P dimension of the biLM's projection, L LSTM layers, S = P + L * 2P stored
numbers per word. The S numbers are the token vector once, and then the forward and the backward output of each layer.
A forward-only language model has P numbers where these shapes have 2P.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from elmo_jax.config import ModelConfig
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.errors import UserError
from elmo_jax.files import atomic_file, check_room, one_at_a_time
from elmo_jax.runs.progress import Progress

WORDS_PER_FILE = 100_000  # the number of words that a process that is killed may have to embed again
BATCH, BATCH_WORDS = 64, 8_192  # the largest batch, in sentences and in words with padding
_LOCK = ".layers.lock"  # held by the process that writes into the folder

Sentence = tuple[str, ...]


class LayersFile:
    """The stored layers of some sentences."""

    def __init__(self, path: Path, sentences: Sequence[Sentence], size: int, dtype: str) -> None:
        """Opens the file of these sentences in this order. Raises `UserError` if it has another size."""
        lengths = np.array([len(sentence) for sentence in sentences], np.int64)
        ends = np.cumsum(lengths)
        self.starts = dict(zip(sentences, (ends - lengths).tolist(), strict=True))  # the first row of each sentence
        shape = (int(ends[-1]), size)
        expected = shape[0] * size * np.dtype(dtype).itemsize
        if path.stat().st_size != expected:
            raise UserError(f"{path}: does not have the {expected:,} bytes that were written; delete the file")
        self.vectors = np.memmap(path, dtype, "r", shape=shape)


class StoredLayers:
    """The stored layers of the sentences of several files."""

    def __init__(self, files: Sequence[LayersFile]) -> None:
        """Keeps the files, of which several may have the same sentence."""
        self._places = {
            sentence: (file.vectors, start) for file in files for sentence, start in file.starts.items()
        }  # so that a sentence is found in a time that does not depend on the number of files

    def __getitem__(self, sentence: Sequence[str]) -> np.ndarray:
        """Returns the numbers of a sentence, [T, S]. Raises `KeyError` if no file has it."""
        vectors, start = self._places[tuple(sentence)]
        return vectors[start : start + len(sentence)]


def stored_size(config: ModelConfig) -> int:
    """Returns S, the number of stored numbers per word."""
    return config.lstm.projection + config.lstm.layers * config.width


def unpacked(stored: jax.Array, config: ModelConfig) -> jax.Array:
    """Maps stored numbers [B, T, S] to layers [B, L+1, T, 2P] in float32; layer 0 is the token vector twice."""
    stored, projection = stored.astype(jnp.float32), config.lstm.projection
    token, layers = stored[..., :projection], stored[..., projection:]
    layers = layers.reshape(*layers.shape[:-1], -1, config.width)  # [B, T, L, 2P]
    both = jnp.concatenate([jnp.tile(token, len(config.directions))[..., None, :], layers], axis=-2)
    return jnp.moveaxis(both, -2, 1)


def packed(layers: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Maps the layers [L+1, T, 2P] of `EmbeddingBiLM.embed` to numbers to store, [T, S]."""
    return np.concatenate([layers[0, :, : config.lstm.projection], *layers[1:]], axis=-1)


class Made(NamedTuple):
    """The result of `make`."""

    files: list[LayersFile]  # one per part of the sentences
    words: int  # the number of words that were not on disk
    seconds: float  # the time for these words


def make(folder: Path, bilm: EmbeddingBiLM, sentences: Iterable[Sequence[str]], dtype: str) -> Made:
    """Opens the files with the layers of some sentences, and computes first those that are missing.

    The distinct sentences, sorted by length, are divided into parts of about `WORDS_PER_FILE` words with a file each,
    so that a process that is stopped loses one part at most. A file's name depends on the biLM, which reads every
    sentence from a zero state, the type of the numbers ("float16" or "float32") and its sentences, so a file is never
    taken for another one, and any number of runs may share a folder.

    Raises:
      UserError: a file cannot be written or is incomplete, the disk has no room for all files, or a number is too large
        for float16.
    """
    distinct = sorted(
        {tuple(sentence) for sentence in sentences if len(sentence)}, key=lambda words: (len(words), words)
    )
    size = stored_size(bilm.config)
    parts = [(folder / f"{_name(bilm, part, dtype)}.layers", part) for part in _parts(distinct)]
    missing = sum(sum(map(len, part)) for path, part in parts if not path.is_file())
    if missing:
        check_room(folder, missing * size * np.dtype(dtype).itemsize, f"vectors of {missing:,} words")
    computed, began = 0, time.perf_counter()
    with Progress("embedding", "words", sum(map(len, distinct))) as progress:
        for path, part in parts:
            if path.is_file() or not _write_once(path, bilm, part, dtype, progress):
                progress.skip(sum(map(len, part)))
            else:
                computed += sum(map(len, part))
    files = [LayersFile(path, part, size, dtype) for path, part in parts]
    return Made(files, computed, time.perf_counter() - began if computed else 0.0)


def _parts(sentences: Sequence[Sentence]) -> Iterator[list[Sentence]]:
    """Yields groups of sentences of similar length with about `WORDS_PER_FILE` words each."""
    part: list[Sentence] = []
    count = 0
    for words in sentences:
        part.append(words)
        count += len(words)
        if count >= WORDS_PER_FILE:
            yield part
            part, count = [], 0
    if part:
        yield part


def _name(bilm: EmbeddingBiLM, sentences: Sequence[Sentence], dtype: str) -> str:
    """Returns the name of the file with the layers of some sentences."""
    digest = hashlib.sha256()
    for sentence in sentences:
        digest.update(("\n".join(sentence) + "\0").encode("utf-8", "surrogatepass"))
    job = {
        "bilm": bilm.fingerprint,
        "precision": bilm.precision.value,
        "dtype": dtype,
        "sentences": len(sentences),
        "words": sum(map(len, sentences)),
        "sentences_sha256": digest.hexdigest(),
    }
    return hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:24]


def _write_once(path: Path, bilm: EmbeddingBiLM, sentences: Sequence[Sentence], dtype: str, progress: Progress) -> bool:
    """Writes a file unless another process has written it in the meantime; returns whether this one did."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(path.parent / _LOCK):
            if path.is_file():
                return False
            with atomic_file(path) as temporary:
                _write(temporary, bilm, sentences, dtype, progress)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error
    return True


def _write(path: Path, bilm: EmbeddingBiLM, sentences: Sequence[Sentence], dtype: str, progress: Progress) -> None:
    """Embeds batches of sentences of similar length, and writes each sentence to its place in the file."""
    starts = np.cumsum([0, *map(len, sentences)])
    size = stored_size(bilm.config)
    with path.open("wb") as empty:  # a write to a memory map for which the disk has no room would kill the process
        os.posix_fallocate(empty.fileno(), 0, int(starts[-1]) * size * np.dtype(dtype).itemsize)
    file = np.memmap(path, dtype, "r+", shape=(int(starts[-1]), size))
    for rows in _batches(sentences):
        layers, _, _ = bilm.embed([sentences[row] for row in rows])
        for row, found in zip(rows, layers, strict=True):
            length = len(sentences[row])
            vectors = packed(found[:, :length], bilm.config).astype(dtype)
            if not np.isfinite(vectors).all():
                raise UserError(
                    f"a vector of {sentences[row]!r} is too large for {dtype}; set config.elmo.dtype=float32"
                )
            file[starts[row] : starts[row] + length] = vectors
            progress.add(length)
    file.flush()


def _batches(sentences: Sequence[Sentence]) -> Iterator[list[int]]:
    order = sorted(range(len(sentences)), key=lambda row: len(sentences[row]))
    while order:
        rows = order[:BATCH]
        while len(rows) > 1 and len(rows) * len(sentences[rows[-1]]) > BATCH_WORDS:
            rows.pop()
        order = order[len(rows) :]
        yield rows
