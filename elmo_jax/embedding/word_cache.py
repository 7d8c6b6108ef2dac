"""Computes the context-free vectors of words, with a bounded cache so that a word is rarely encoded twice.

Several threads may use one cache: a lock guards every look-up and every change. Words are encoded without the lock, so
that two threads may encode the same new word at the same time; the vector is then stored once.

Shapes: n words, W characters, P projection, K words encoded in one call of the compiled program.
"""

import functools
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from elmo_jax.characters import BEGIN_SENTENCE_WORD, END_SENTENCE_WORD, PADDING, spell
from elmo_jax.errors import UserError
from elmo_jax.model.bilm import BiLM
from elmo_jax.model.precision import usual_numerics
from elmo_jax.types import Tree

SIZES = (32, 512)  # the values of K, for few and for many words; one program is compiled for each
_log = logging.getLogger(__name__)
CAPACITY = 1 << 16  # the number of words in the cache, which needs 128 MB at the published size


def key(word: str, max_characters: int) -> bytes | str:
    """Returns what a word's vector depends on: its first `max_characters` - 2 bytes.

    Two words with the same first bytes have the same vector, as in bilm-tf.

    Raises:
      UserError: the word contains half of a surrogate pair, which cannot be encoded.
    """
    if word in (BEGIN_SENTENCE_WORD, END_SENTENCE_WORD):
        return word  # the sentence marks are not spelled by their bytes, but by separate characters
    read = max_characters - 2
    try:
        if 4 * len(word) > read and len(word.encode(errors="replace")) > read:
            _warn_of_long_words(read)
        return word[:read].encode()[:read]
    except UnicodeEncodeError:
        raise UserError(f"the word {word!r} holds half of a surrogate pair; decode the text as UTF-8") from None


@functools.cache  # once
def _warn_of_long_words(read: int) -> None:
    _log.warning("some words are longer than %d bytes, of which the biLM reads no more; their ends are cut off", read)


@partial(jax.jit, static_argnames="model")
def _encode(model: BiLM, params: Tree, characters: jax.Array, count: jax.Array) -> jax.Array:
    vectors: Any = model.apply({"params": params}, characters, count, method="encode")
    return vectors


class WordVectors:
    """Computes the context-free vectors of words, and keeps those used last in the host's memory.

    Attributes:
      encoded: the number of words encoded so far.
    """

    def __init__(self, model: BiLM, params: Tree, capacity: int = CAPACITY) -> None:
        """Makes an empty cache.

        Args:
          model: the architecture.
          params: the parameter tree, on devices.
          capacity: the maximum number of words in the cache.
        """
        self._model, self._params = model, params
        self._rows: OrderedDict[bytes | str, int] = OrderedDict()  # word -> row of the store, least recently used first
        self._capacity = capacity
        self._size = model.config.lstm.projection
        self._store = np.empty((capacity, self._size), np.float32)  # takes memory as rows are written
        self._lock = threading.Lock()  # guards the rows, the store and the count
        self.encoded = 0

    def __len__(self) -> int:
        """Returns the number of words in the cache."""
        return len(self._rows)

    def __call__(self, words: Sequence[str]) -> np.ndarray:
        """Returns the vectors of words, which may repeat: float32 [n, P].

        Raises:
          UserError: the words are one string, or a word cannot be encoded.
        """
        if isinstance(words, str):
            raise UserError(f"words: expected a list of words, got one string; try [{words!r}]")
        size = self._model.config.char_cnn.max_characters
        keys = [key(word, size) for word in words]
        place: dict[bytes | str, int] = {}  # the index of each distinct word
        for k in keys:
            place.setdefault(k, len(place))
        vectors = np.empty((len(place), self._size), np.float32)
        missing: dict[bytes | str, str] = {}
        with self._lock:
            for k, word in zip(keys, words, strict=True):
                if k in self._rows:
                    self._rows.move_to_end(k)
                    vectors[place[k]] = self._store[self._rows[k]]
                else:
                    missing.setdefault(k, word)
        if missing:
            found = self.encode(list(missing.values()))
            vectors[[place[k] for k in missing]] = found
            with self._lock:
                self._keep(list(missing), found)
        return vectors[[place[k] for k in keys]] if keys else vectors

    @usual_numerics()
    def encode(self, words: Sequence[str]) -> np.ndarray:
        """Returns the vectors of words, [n, P], without the cache."""
        for word in words:
            key(word, self._model.config.char_cnn.max_characters)  # which warns of long words
        characters = spell(words, self._model.config.char_cnn.max_characters)
        # Words are sorted by length, so that fewer positions are convolved for short words.
        order = np.argsort((characters != PADDING).sum(1), kind="stable")
        vectors = np.empty((len(words), self._size), np.float32)
        for start in range(0, len(words), SIZES[-1]):
            part = order[start : start + SIZES[-1]]
            size = next(size for size in SIZES if size >= len(part))
            batch = np.full((size, characters.shape[1]), PADDING, np.int16)
            batch[: len(part)] = characters[part]
            out = _encode(self._model, self._params, jnp.asarray(batch), jnp.asarray(len(part), jnp.int32))
            vectors[part] = np.asarray(out)[: len(part)]
        with self._lock:
            self.encoded += len(words)
        return vectors

    def _keep(self, keys: Sequence[bytes | str], vectors: np.ndarray) -> None:
        """Stores the vectors of distinct words; the caller holds the lock."""
        for k, vector in zip(keys, vectors, strict=True):
            if k in self._rows or not self._capacity:  # another thread has encoded the word in the meantime
                continue
            row = len(self._rows) if len(self._rows) < self._capacity else self._rows.popitem(last=False)[1]
            self._store[row] = vector
            self._rows[k] = row
