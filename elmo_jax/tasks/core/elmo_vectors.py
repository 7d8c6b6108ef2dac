"""Computes the frozen layers of a biLM for many sentences once, and keeps them in memory-mapped files.

Shapes: N sentences, T words of a sentence, P dimension of the biLM's projection, L LSTM layers, S = P + L * 2P stored
numbers per word. The S numbers are the token vector once, and then the forward and the backward output of each layer.
A forward-only language model has P numbers where these shapes have 2P.
"""

import hashlib
import itertools
import json
import os
import time
import zlib
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

# The index of a file: the key, the number of words and the checksum of the numbers of each sentence.
_ENTRY = np.dtype([("key", "V16"), ("words", "<i8"), ("crc", "<u4")])

Sentence = tuple[str, ...]


class LayersFile:
    """The stored layers of some sentences: an array `.npy` of `_ENTRY`, followed by the numbers.

    A damaged key is that of no sentence, and the checksum of a sentence shows all other damages.
    """

    def __init__(self, path: Path, size: int, dtype: str) -> None:
        """Opens a file. Raises `UserError` if it has another size than its index says, or no index."""
        self.path = path
        with path.open("rb") as file:
            try:
                self.entries = np.lib.format.read_array(file, max_header_size=1000)
            except OSError:
                raise
            except Exception:  # of many kinds, from NumPy's parser of the header
                raise _damaged(path) from None
            start = file.tell()
        if self.entries.dtype != _ENTRY:
            raise _damaged(path)
        self.keys: list[bytes] = self.entries["key"].tolist()
        shape = (sum(self.entries["words"].tolist()), size)
        if path.stat().st_size != start + shape[0] * size * np.dtype(dtype).itemsize:
            raise _damaged(path)
        self.vectors = np.memmap(path, dtype, "r", start, shape)


class StoredLayers:
    """The stored layers of the sentences of several files."""

    def __init__(self, files: Sequence[LayersFile]) -> None:
        """Keeps the files, of which several may have the same sentence."""
        self._places: dict[bytes, tuple[LayersFile, int, int]] = {}  # the file, the end of the rows, and the checksum
        for file in files:
            ends = np.cumsum(file.entries["words"]).tolist()
            places = zip(itertools.repeat(file), ends, file.entries["crc"].tolist())
            self._places |= zip(file.keys, places, strict=False)

    def __getitem__(self, sentence: Sequence[str]) -> np.ndarray:
        """Returns the numbers of a sentence, [T, S].

        Raises:
          KeyError: no file has the sentence.
          UserError: the numbers are not those that were written.
        """
        file, end, crc = self._places[_key(sentence)]
        vectors = file.vectors[end - len(sentence) : end]
        if zlib.crc32(vectors.data) != crc:
            raise _damaged(file.path)
        return vectors


def _damaged(path: Path) -> UserError:
    return UserError(f"{path}: damaged, since it has not what was written; delete the file, which is then made again")


def _key(sentence: Sequence[str]) -> bytes:
    return hashlib.sha256(repr(tuple(map(str, sentence))).encode("utf-8", "surrogatepass")).digest()[:16]


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

    files: list[LayersFile]  # those with some of the sentences
    words: int  # the number of words that were not on disk
    seconds: float  # the time for these words


def make(folder: Path, bilm: EmbeddingBiLM, sentences: Iterable[Sequence[str]], dtype: str) -> Made:
    """Opens the files with the layers of some sentences, and computes first those that are missing.

    The distinct sentences that no file has, sorted by length, are divided into parts of about `WORDS_PER_FILE` words
    with a file each, so that a process that is stopped loses one part at most. A file's name begins with a digest of
    the biLM, which reads every sentence from a zero state, and the type of the numbers ("float16" or "float32"), so
    that any number of runs may share a folder.

    Raises:
      UserError: a file cannot be written or is damaged, the disk has no room for all files, or a number is too large
        for float16.
    """
    wanted = {_key(sentence): tuple(sentence) for sentence in sentences if len(sentence)}
    job = json.dumps([bilm.fingerprint, bilm.precision.value, dtype])
    size, name = stored_size(bilm.config), hashlib.sha256(job.encode()).hexdigest()[:16]
    files = [LayersFile(path, size, dtype) for path in sorted(folder.glob(f"{name}-*.layers"))]
    there = {key for file in files for key in file.keys}
    files = [file for file in files if not wanted.keys().isdisjoint(file.keys)]
    distinct = sorted((wanted[key] for key in wanted.keys() - there), key=lambda words: (len(words), words))
    missing = sum(map(len, distinct))
    if missing:
        check_room(folder, missing * size * np.dtype(dtype).itemsize, f"vectors of {missing:,} words")
    computed, began = 0, time.perf_counter()
    with Progress("embedding", "words", missing) as progress:
        for part in _parts(distinct):
            digest = hashlib.sha256(b"".join(map(_key, part))).hexdigest()[:16]
            path = folder / f"{name}-{digest}.layers"
            if _write_once(path, bilm, part, dtype, progress):
                computed += sum(map(len, part))
            else:
                progress.skip(sum(map(len, part)))
            files.append(LayersFile(path, size, dtype))
    return Made(files, computed, time.perf_counter() - began if computed else 0.0)


def _parts(sentences: Sequence[Sentence]) -> Iterator[list[Sentence]]:
    """Yields groups of sentences of similar length with about `WORDS_PER_FILE` words each."""
    ends = itertools.accumulate(map(len, sentences))
    for _, part in itertools.groupby(zip(sentences, ends, strict=True), lambda pair: (pair[1] - 1) // WORDS_PER_FILE):
        yield [words for words, _ in part]


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
    shape, entries = (int(starts[-1]), stored_size(bilm.config)), np.zeros(len(sentences), _ENTRY)
    with path.open("wb") as empty:  # a write to a memory map for which the disk has no room would kill the process
        np.lib.format.write_array(empty, entries)
        offset = empty.tell()
        os.posix_fallocate(empty.fileno(), offset, shape[0] * shape[1] * np.dtype(dtype).itemsize)
    file = np.memmap(path, dtype, "r+", offset, shape)
    for rows in _batches(sentences):
        layers, _, _ = bilm.embed([sentences[row] for row in rows])
        for row, found in zip(rows, layers, strict=True):
            length = len(sentences[row])
            vectors = packed(found[:, :length], bilm.config).astype(dtype)
            if not np.isfinite(vectors).all():
                raise UserError(
                    f"a vector of {sentences[row]!r} is too large for {dtype}; set config.elmo.dtype=float32"
                )
            stored = file[starts[row] : starts[row] + length]
            stored[:] = vectors
            entries[row] = np.void(_key(sentences[row])), length, zlib.crc32(stored.data)
            progress.add(length)
    file.flush()
    with path.open("r+b") as index:
        np.lib.format.write_array(index, entries)


def _batches(sentences: Sequence[Sentence]) -> Iterator[range]:
    """Yields the numbers of the sentences, which are sorted by length, of each batch."""
    first = 0
    while first < len(sentences):
        rows = range(first, min(first + BATCH, len(sentences)))
        while len(rows) > 1 and len(rows) * len(sentences[rows[-1]]) > BATCH_WORDS:
            rows = rows[:-1]
        yield rows
        first = rows.stop
