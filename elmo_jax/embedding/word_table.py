"""The table of word vectors on the devices: context-free vectors of words, each of which is rarely encoded twice.

Shapes: n words, W characters, P projection, K rows of the table, U words encoded in one call of the compiled program.
"""

import functools
import itertools
import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from elmo_jax.characters import PADDING, encode_chars
from elmo_jax.distributed.mesh import REPLICATED
from elmo_jax.errors import UserError
from elmo_jax.model.bilm import BiLM
from elmo_jax.model.precision import standard_numerics
from elmo_jax.types import Tree

CAPACITY = 1 << 16  # the rows of the table, which needs 128 MB at the published size
CHUNK = 512  # U
_log = logging.getLogger(__name__)


def check_word(word: str, max_characters: int) -> None:
    """Warns once of words that are longer than the biLM reads; refuses half of a surrogate pair."""
    read = max_characters - 2
    try:
        if 4 * len(word) > read and len(word.encode(errors="replace")) > read:
            _warn_of_long_words(read)
        word[:read].encode()
    except UnicodeEncodeError:
        raise UserError(f"the word {word!r} holds half of a surrogate pair; decode the text as UTF-8") from None


@functools.cache  # once
def _warn_of_long_words(read: int) -> None:
    _log.warning("some words are longer than %d bytes, of which the biLM reads no more; their ends are cut off", read)


@partial(jax.jit, static_argnames="model", donate_argnames="table")
def _encode(
    model: BiLM, params: Tree, table: jax.Array, characters: jax.Array, count: jax.Array, rows: jax.Array
) -> jax.Array:
    vectors: Any = model.apply({"params": params}, characters, count, method="encode")
    return table.at[rows].set(vectors, mode="drop")


_take = jax.jit(lambda table, rows: table[rows])


class WordTable:
    """Keeps the vectors of the words used last in a table on all devices of a mesh.

    Attributes:
      vectors: [K, P] the table; a call of `rows` donates it and makes another one.
      lock: held by who looks up rows, until the programs that read them have been started.
      encoded: the number of words encoded so far.
    """

    def __init__(self, model: BiLM, params: Tree, mesh: Mesh, capacity: int = CAPACITY) -> None:
        # The parameters are those of the token encoder, on all devices of the mesh; a call has at most K words.
        self._model, self._params, self.capacity = model, params, capacity
        self._placement = NamedSharding(mesh, REPLICATED)
        self.lock = threading.Lock()
        self._rows: dict[str, int] = {}
        self._words: list[str] = []  # of each row
        self._last_call = np.zeros(capacity, np.int64)  # the last call that used each row
        self._calls = self.encoded = 0

    def __len__(self) -> int:
        return len(self._rows)

    @functools.cached_property
    def vectors(self) -> jax.Array:
        zeros = np.zeros((self.capacity, self._model.config.lstm.projection), np.float32)  # a program less than jnp's
        return jax.device_put(zeros, self._placement, may_alias=False)

    @standard_numerics()
    def __call__(self, words: Sequence[str]) -> np.ndarray:
        """Returns the vectors of words, which may repeat: float32 [n, P].

        Raises:
          UserError: the words are one string, or a word cannot be encoded.
        """
        if isinstance(words, str):
            raise UserError(f"words: expected a list of words, got one string; try [{words!r}]")
        if (wrong := next((word for word in words if not isinstance(word, str)), None)) is not None:
            raise UserError(f"words: holds {wrong!r}, which is no word (str)")
        vectors = [np.zeros((0, self._model.config.lstm.projection), np.float32)]
        size = min(CHUNK, self.capacity)
        for start in range(0, len(words), size):
            part = words[start : start + size]
            with self.lock:
                rows = np.zeros(CHUNK, np.int32)
                rows[: len(part)] = self.rows(part)
                of_part = _take(self.vectors, rows)
            vectors.append(np.asarray(of_part)[: len(part)])
        return np.concatenate(vectors)

    def rows(self, words: Sequence[str]) -> np.ndarray:
        """Returns the rows of words, int32 [n], after encoding those that have none; the caller holds the lock."""
        self._calls += 1
        rows = self._known(words)
        is_new = rows < 0
        if is_new.any():
            self._last_call[rows[~is_new]] = self._calls
            self._add(list(dict.fromkeys(words[i] for i in np.flatnonzero(is_new).tolist())))
            rows = self._known(words)
        self._last_call[rows] = self._calls
        return rows

    def _known(self, words: Sequence[str]) -> np.ndarray:
        return np.fromiter(map(self._rows.get, words, itertools.repeat(-1)), np.int32, len(words))

    def _add(self, words: list[str]) -> None:
        """Encodes distinct new words into free rows, and then into those that were not used for the longest time."""
        for word in words:
            check_word(word, self._model.config.char_cnn.max_characters)
        characters = encode_chars(words, self._model.config.char_cnn.max_characters)
        free = range(len(self._words), min(len(self._words) + len(words), self.capacity))
        self._last_call[free] = self._calls
        missing, evicted = len(words) - len(free), np.zeros(0, np.int64)
        if missing:
            evicted = np.argpartition(self._last_call, min(missing, self.capacity) - 1)[:missing]
            if len(evicted) < missing or self._last_call[evicted].max() == self._calls:
                raise UserError(f"a sentence has more than {self.capacity:,} distinct words; divide it into sentences")
        rows = np.array([*free, *evicted], np.int32)
        for row in evicted.tolist():  # before their vectors are overwritten, since this call may be interrupted
            self._rows.pop(self._words[row], None)
        # Words are sorted by length, so that fewer positions are convolved for short words.
        order = np.argsort((characters != PADDING).sum(1), kind="stable")
        for start in range(0, len(words), CHUNK):
            part = order[start : start + CHUNK]
            batch = np.full((CHUNK, characters.shape[1]), PADDING, np.int16)
            into = np.full(CHUNK, self.capacity, np.int32)  # past the table, where nothing is written
            batch[: len(part)], into[: len(part)] = characters[part], rows[part]
            inputs = jax.device_put((batch, np.int32(len(part)), into), self._placement)
            self.vectors = _encode(self._model, self._params, self.vectors, *inputs)
        self._words += [""] * len(free)
        for word, row in zip(words, rows.tolist(), strict=True):
            self._words[row] = word
            self._rows[word] = row
        self.encoded += len(words)
