"""The order of the softmax rows in a training state: interleaved, so that word w is in group w % 256.

Words are ordered by descending frequency. If the rows were divided over devices in that order, the first device would
hold all frequent words, and with them most of the work. Therefore the row of word w is at index w // 256 of group
w % 256, and the groups are stored one after another. The layout does not depend on the devices: the groups can be
divided equally over any number of devices that divides 256, and a checkpoint is the same whatever devices wrote it.
Exports hold the rows in the order of the vocabulary.

Shapes: V vocabulary, R rows stored, 256 groups of R / 256 rows.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from elmo_jax.types import Tree

GROUPS = 256


def group_size(vocabulary_size: int) -> int:
    """Returns the number of rows per group, R / 256.

    The last row of the last group is always padding, so that R never equals V, and an array in the order of the
    vocabulary cannot be mistaken for an interleaved one.
    """
    return vocabulary_size // GROUPS + 1


def stored_rows(vocabulary_size: int) -> int:
    """Returns the number R of rows stored, which is V plus 1 to 256 rows of padding."""
    return GROUPS * group_size(vocabulary_size)


def rows_of(words: jax.Array, vocabulary_size: int) -> jax.Array:
    """Returns the row of each word."""
    return words % GROUPS * group_size(vocabulary_size) + words // GROUPS


def words_of(rows: jax.Array, vocabulary_size: int) -> jax.Array:
    """Returns the word of each row, which is V or more if the row is padding."""
    length = group_size(vocabulary_size)
    return rows % length * GROUPS + rows // length


def without_padding(bias: jax.Array, vocabulary_size: int, first_row: jax.Array | int = 0) -> jax.Array:
    """Returns the biases of consecutive rows from `first_row` on with -inf in those of padding."""
    words = words_of(first_row + jnp.arange(bias.shape[0]), vocabulary_size)
    return jnp.where(words < vocabulary_size, bias, -jnp.inf)


def interleave(params: Mapping[str, Any], padding: float = 0.0) -> Tree:
    """Returns a parameter tree whose softmax rows [V, ...] are interleaved: [R, ...], filled up with `padding`."""

    def deal(rows: Any) -> Any:
        xp = np if isinstance(rows, np.ndarray) else jnp
        missing = stored_rows(len(rows)) - len(rows)
        padded = xp.concatenate([rows, xp.full((missing, *rows.shape[1:]), padding, rows.dtype)])
        return padded.reshape(-1, GROUPS, *rows.shape[1:]).swapaxes(0, 1).reshape(padded.shape)

    return {**params, "softmax": jax.tree.map(deal, params["softmax"])}


def deinterleave(params: Mapping[str, Any], vocabulary_size: int) -> Tree:
    """Returns a parameter tree with the softmax rows in the order of the vocabulary; the inverse of `interleave`."""

    def collect(rows: Any) -> Any:
        interleaved = rows.reshape(GROUPS, -1, *rows.shape[1:]).swapaxes(0, 1)
        return interleaved.reshape(rows.shape)[:vocabulary_size]

    return {**params, "softmax": jax.tree.map(collect, params["softmax"])}
