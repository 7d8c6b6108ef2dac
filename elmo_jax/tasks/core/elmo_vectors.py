"""Computes the frozen layers of a biLM for many sentences once, and keeps them in memory-mapped files.

Shapes: N sentences, T words of a sentence, P dimension of the biLM's projection, L LSTM layers, S = P + L * 2P stored
numbers per word. The S numbers are the token vector once, and then the forward and the backward output of each layer.
A forward-only language model has P numbers where these shapes have 2P.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from elmo_jax.config import ModelConfig
from elmo_jax.data.batches import prefetched
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.embedding.embed import check_sentences, embed_texts, in_batches
from elmo_jax.embedding.shards import Shard, advised, write_shard
from elmo_jax.errors import UserError
from elmo_jax.files import check_free_space, make_folder_of, one_at_a_time, writing
from elmo_jax.runs.progress import Progress

WORDS_PER_FILE = 50_000  # the number of words that a process that is killed may have to embed again, about
_REMEDY = "delete the file, which is then made again"
_LOCK = ".layers.lock"  # held by the process that writes into the folder


class LayerCache:
    """The stored layers of the sentences of several files, of which several may have the same sentence."""

    def __init__(self, files: Sequence[Shard]) -> None:
        self._files = {key: (file, number) for file in files for number, key in enumerate(file.keys)}

    def __getitem__(self, sentence: Sequence[str]) -> np.ndarray:
        """Returns the numbers of a sentence, [T, S]; raises `KeyError` if no file has it."""
        file, number = self._files[_key(sentence)]
        with advised(_REMEDY):
            return file[number]


def _key(sentence: Sequence[str]) -> bytes:
    return hashlib.sha256(repr(tuple(map(str, sentence))).encode("utf-8", "surrogatepass")).digest()[:16]


def stored_size(config: ModelConfig) -> int:
    """Returns S, the number of stored numbers per word."""
    return config.lstm.projection + config.lstm.layers * config.width


def unpack_layers(stored: Any, config: ModelConfig, xp: Any = jnp) -> Any:
    """Maps stored numbers [B, T, S] to layers [B, L+1, T, 2P] in float32; `xp` is `jax.numpy` or `numpy`."""
    stored, projection = stored.astype(xp.float32), config.lstm.projection
    token, layers = stored[..., :projection], stored[..., projection:]
    layers = layers.reshape(*layers.shape[:-1], -1, config.width)  # [B, T, L, 2P]
    both = xp.concatenate([xp.tile(token, len(config.directions))[..., None, :], layers], axis=-2)
    return xp.moveaxis(both, -2, 1)


class Computed(NamedTuple):
    """The files with some of the sentences, and the number of words that were not on disk."""

    files: list[Shard]
    words: int


def make(folder: Path, bilm: EmbeddingBiLM, sentences: Iterable[Sequence[str]], dtype: str) -> Computed:
    """Opens the files with the layers of some sentences, and computes first those that are missing.

    The distinct sentences that no file has are divided into parts of about `WORDS_PER_FILE` words with a file each. A
    file's name begins with a digest of the biLM, which reads every sentence from a zero state, and the type of the
    numbers ("float16" or "float32"), so that any number of runs may share a folder; one at a time writes into it.

    Raises:
      UserError: a file cannot be written or is damaged, the disk has no room for all files, or a number is too large
        for float16.
    """
    wanted = {_key(sentence): tuple(sentence) for sentence in sentences if len(sentence)}
    check_sentences(list(wanted.values()))
    job = json.dumps([bilm.vectors_fingerprint, bilm.precision.value, dtype, 2])
    name = hashlib.sha256(job.encode()).hexdigest()[:16]

    def opened() -> tuple[list[Shard], list[tuple[str, ...]]]:
        with advised(_REMEDY):
            files = [Shard(path) for path in sorted(folder.glob(f"{name}-*.layers"))]
        there = {key for file in files for key in file.keys}
        some = [file for file in files if not wanted.keys().isdisjoint(file.keys)]
        return some, [words for key, words in wanted.items() if key not in there]

    files, missing = opened()
    if not missing:
        return Computed(files, 0)
    number = sum(map(len, missing))
    size = number * stored_size(bilm.config) * np.dtype(dtype).itemsize
    check_free_space(folder, size, f"vectors of {number:,} words")
    make_folder_of(folder / _LOCK)
    with writing(folder), one_at_a_time(folder / _LOCK):
        files, missing = opened()  # another process may have written files in the meantime
        number = sum(map(len, missing))
        parts = ((part, part) for part in in_batches(missing, len, WORDS_PER_FILE))
        with Progress("embedding", "words", number) as progress:
            for part, vectors, finite in prefetched(embed_texts(bilm.engine, parts, dtype)):
                lengths, keys = list(map(len, part)), list(map(_key, part))
                if not finite.all():
                    at = int(np.searchsorted(np.cumsum(lengths), np.argmin(finite), "right"))
                    raise UserError(f"a vector of {part[at]} is too large for {dtype}; set config.elmo.dtype=float32")
                digest = hashlib.sha256(b"".join(keys)).hexdigest()[:16]
                write_shard(folder / f"{name}-{digest}.layers", vectors, lengths, keys)
                progress.add(sum(lengths))
    return Computed(opened()[0], number)
