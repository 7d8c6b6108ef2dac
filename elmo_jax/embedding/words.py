"""Words to vectors, each distinct word encoded once: a cache that stays within bounds.

Shapes: n words, W characters, P projection, K words encoded in one program.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from elmo_jax.characters import BEGIN_SENTENCE_WORD, END_SENTENCE_WORD, PADDING, spell
from elmo_jax.errors import UserError
from elmo_jax.model.bilm import BiLM
from elmo_jax.model.frozen import encode
from elmo_jax.types import Tree

SIZES = (32, 512)  # K: a few words, and many; one program each
CAPACITY = 1 << 16  # words kept; 128 MB at the original's size


def key(word: str, max_characters: int) -> bytes | str:
    """What a word's vector depends on: its first bytes. Two words that share them have one vector, as in the original.

    Raises:
      UserError: half of a surrogate pair, which is no text.
    """
    if word in (BEGIN_SENTENCE_WORD, END_SENTENCE_WORD):
        return word  # not their bytes: spelt by a character of their own
    try:
        return word[: max_characters - 2].encode()[: max_characters - 2]
    except UnicodeEncodeError:
        raise UserError(f"the word {word!r} holds half of a surrogate pair; decode the text as UTF-8") from None


@partial(jax.jit, static_argnames="model")
def _encode(model: BiLM, params: Tree, characters: jax.Array, count: jax.Array) -> jax.Array:
    return encode(model, params, characters, count)


class WordVectors:
    """The context-free vectors of a biLM, on the host; the words used last are kept."""

    def __init__(self, model: BiLM, params: Tree, capacity: int = CAPACITY) -> None:
        """`params` on devices; `capacity` words are kept at most."""
        self._model, self._params = model, params
        self._rows: OrderedDict[bytes | str, int] = OrderedDict()  # word -> row of the store, oldest use first
        self._capacity = capacity
        self._store = np.empty((0, model.config.lstm.projection), np.float32)
        self.encoded = 0  # words that went through the encoder so far

    def __len__(self) -> int:
        """Words kept."""
        return len(self._rows)

    def __call__(self, words: Sequence[str]) -> np.ndarray:
        """[n, P] float32 of `words`, which may repeat. Raises `UserError` for text that cannot be encoded."""
        size = self._model.config.char_cnn.max_characters
        keys = [key(word, size) for word in words]
        place: dict[bytes | str, int] = {}  # of each distinct word
        for k in keys:
            place.setdefault(k, len(place))
        vectors = np.empty((len(place), self._store.shape[1]), np.float32)
        missing: dict[bytes | str, str] = {}
        for k, word in zip(keys, words, strict=True):
            if k in self._rows:
                self._rows.move_to_end(k)
                vectors[place[k]] = self._store[self._rows[k]]
            else:
                missing.setdefault(k, word)
        if missing:
            found = self.encode(list(missing.values()))
            vectors[[place[k] for k in missing]] = found
            self._keep(list(missing), found)
        return vectors[[place[k] for k in keys]] if keys else vectors

    def encode(self, words: Sequence[str]) -> np.ndarray:
        """[n, P] of `words`, all through the encoder; nothing is kept."""
        characters = spell(words, self._model.config.char_cnn.max_characters)
        order = np.argsort(
            (characters != PADDING).sum(1), kind="stable"
        )  # short words first: fewer positions convolved
        vectors = np.empty((len(words), self._store.shape[1]), np.float32)
        for start in range(0, len(words), SIZES[-1]):
            part = order[start : start + SIZES[-1]]
            size = next(size for size in SIZES if size >= len(part))
            batch = np.full((size, characters.shape[1]), PADDING, np.int16)
            batch[: len(part)] = characters[part]
            out = _encode(self._model, self._params, jnp.asarray(batch), jnp.asarray(len(part), jnp.int32))
            vectors[part] = np.asarray(out)[: len(part)]
        self.encoded += len(words)
        return vectors

    def _keep(self, keys: Sequence[bytes | str], vectors: np.ndarray) -> None:
        if not self._capacity:
            return
        keys, vectors = keys[-self._capacity :], vectors[-self._capacity :]
        if len(self._store) < self._capacity:  # grown as it is needed
            wanted = min(self._capacity, max(2 * len(self._store), len(self._rows) + len(keys)))
            self._store = np.concatenate([self._store, np.empty((wanted - len(self._store), vectors.shape[1]), "f4")])
        for k, vector in zip(keys, vectors, strict=True):
            row = len(self._rows) if len(self._rows) < self._capacity else self._rows.popitem(last=False)[1]
            self._store[row] = vector
            self._rows[k] = row
