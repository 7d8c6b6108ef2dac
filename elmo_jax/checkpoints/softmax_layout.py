"""The order of the softmax rows in a training state: the rows are distributed over 256 lanes in turn.

Words are ordered by descending frequency. If the rows were divided over devices in that order, the first device would
hold all frequent words, and with them most of the work. Therefore the row of word w is in lane w % 256, at place
w // 256 of the lane, and the lanes are stored one after another. The layout does not depend on the devices: the lanes
can be divided equally over any number of devices that divides 256, and a checkpoint is the same whatever devices wrote
it. Exports hold the rows in the order of the vocabulary.

Shapes: V vocabulary, R rows stored, 256 lanes of R / 256 rows.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from elmo_jax.types import Tree

LANES = 256


def lane_length(vocabulary_size: int) -> int:
    """Returns the number of rows per lane, R / 256.

    The last row of the last lane is always padding, so that R never equals V, and an array in the order of the
    vocabulary cannot be mistaken for one in lanes.
    """
    return vocabulary_size // LANES + 1


def stored_rows(vocabulary_size: int) -> int:
    """Returns the number R of rows stored, which is V plus 1 to 256 rows of padding."""
    return LANES * lane_length(vocabulary_size)


def rows_of(words: jax.Array, vocabulary_size: int) -> jax.Array:
    """Returns the row of each word."""
    return words % LANES * lane_length(vocabulary_size) + words // LANES


def words_of(rows: jax.Array, vocabulary_size: int) -> jax.Array:
    """Returns the word of each row, which is V or more if the row is padding."""
    length = lane_length(vocabulary_size)
    return rows % length * LANES + rows // length


def without_padding(bias: jax.Array, vocabulary_size: int, first_row: jax.Array | int = 0) -> jax.Array:
    """Returns biases with -inf in the rows of padding, so that padding has no probability in a softmax over all rows.

    Args:
      bias: the biases of consecutive rows.
      vocabulary_size: V.
      first_row: the index of the first of these rows.
    """
    words = words_of(first_row + jnp.arange(bias.shape[0]), vocabulary_size)
    return jnp.where(words < vocabulary_size, bias, -jnp.inf)


def to_lanes(params: Mapping[str, Any], padding: float = 0.0) -> Tree:
    """Returns a parameter tree with the softmax rows [V, ...] in lanes, [R, ...]; `padding` fills the further rows."""

    def deal(rows: Any) -> Any:
        xp = np if isinstance(rows, np.ndarray) else jnp
        missing = stored_rows(len(rows)) - len(rows)
        padded = xp.concatenate([rows, xp.full((missing, *rows.shape[1:]), padding, rows.dtype)])
        return padded.reshape(-1, LANES, *rows.shape[1:]).swapaxes(0, 1).reshape(padded.shape)

    return {**params, "softmax": jax.tree.map(deal, params["softmax"])}


def from_lanes(params: Mapping[str, Any], vocabulary_size: int) -> Tree:
    """Returns a parameter tree with the softmax rows in the order of the vocabulary; the inverse of `to_lanes`."""

    def collect(rows: Any) -> Any:
        lanes = rows.reshape(LANES, -1, *rows.shape[1:]).swapaxes(0, 1)
        return lanes.reshape(rows.shape)[:vocabulary_size]

    return {**params, "softmax": jax.tree.map(collect, params["softmax"])}
