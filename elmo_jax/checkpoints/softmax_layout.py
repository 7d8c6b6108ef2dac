"""Where the rows of the softmax lie in a training state: dealt out to 256 lanes, as cards are.

Words are ordered by falling frequency. Were the rows divided over devices in that order, the first device would hold
all frequent words, and with them all the work. So word w lies in lane w % 256, at place w // 256 of it; the lanes lie
one after another. The layout does not depend on the devices: any number of them that divides 256 can share the lanes
out, and a checkpoint is the same whatever wrote it. Exports hold the rows in the order of the vocabulary.

Shapes: V vocabulary, R rows stored, 256 lanes of R / 256.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from elmo_jax.types import Tree

LANES = 256


def lane_length(vocabulary_size: int) -> int:
    """R / 256. The last row of the last lane is always padding, so that R is never V: an array in the order of the
    vocabulary is never taken for one in lanes."""
    return vocabulary_size // LANES + 1


def stored_rows(vocabulary_size: int) -> int:
    """R: V and 1 to 256 rows of padding."""
    return LANES * lane_length(vocabulary_size)


def rows_of(words: jax.Array, vocabulary_size: int) -> jax.Array:
    """The row of each word."""
    return words % LANES * lane_length(vocabulary_size) + words // LANES


def words_of(rows: jax.Array, vocabulary_size: int) -> jax.Array:
    """The word of each row; V or more where the row is padding."""
    length = lane_length(vocabulary_size)
    return rows % length * LANES + rows // length


def without_padding(bias: jax.Array, vocabulary_size: int, first_row: jax.Array | int = 0) -> jax.Array:
    """Some rows' biases, with -inf for padding: so it has no part in a softmax over all rows.

    Args:
      bias: of the rows from `first_row` on.
    """
    words = words_of(first_row + jnp.arange(bias.shape[0]), vocabulary_size)
    return jnp.where(words < vocabulary_size, bias, -jnp.inf)


def to_lanes(params: Mapping[str, Any]) -> Tree:
    """A parameter tree with the rows of its softmax [V, ...] dealt out to lanes, [R, ...]; padding is zero."""

    def deal(rows: Any) -> Any:
        xp = np if isinstance(rows, np.ndarray) else jnp
        padding = stored_rows(len(rows)) - len(rows)
        padded = xp.concatenate([rows, xp.zeros((padding, *rows.shape[1:]), rows.dtype)])
        return padded.reshape(-1, LANES, *rows.shape[1:]).swapaxes(0, 1).reshape(padded.shape)

    return {**params, "softmax": jax.tree.map(deal, params["softmax"])}


def from_lanes(params: Mapping[str, Any], vocabulary_size: int) -> Tree:
    """The inverse of `to_lanes`: rows in the order of the vocabulary."""

    def collect(rows: Any) -> Any:
        lanes = rows.reshape(LANES, -1, *rows.shape[1:]).swapaxes(0, 1)
        return lanes.reshape(rows.shape)[:vocabulary_size]

    return {**params, "softmax": jax.tree.map(collect, params["softmax"])}
