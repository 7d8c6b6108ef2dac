"""A trained biLM in use: words to vectors once, then the layers over vectors; no dropout, no gradient.

Shapes: U distinct words, W characters, B rows, T steps, P projection, C cells, L LSTM layers; a leading 2 is the
direction, forward then backward, the backward stream already reversed.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from elmo_jax.model.bilm import BiLM
from elmo_jax.types import Tree


def encode(model: BiLM, params: Tree, characters: jax.Array, count: jax.Array | int | None = None) -> jax.Array:
    """Context-free vectors of words.

    Args:
      model: the architecture; it need not be bound.
      params: the biLM's tree; a softmax in it is not looked at.
      characters: [U, W] raw character ids (0 to 260).
      count: how many of the U rows are words; all, if not given.

    Returns:
      [U, P], float32.
    """

    vectors: Any = model.apply({"params": params}, characters, count, method="encode")
    return vectors


def run_layers(
    model: BiLM, params: Tree, vectors: jax.Array, carry: Tree, mask: jax.Array | None = None
) -> tuple[list[jax.Array], Tree]:
    """The LSTM layers over token vectors that are there already (from a cache, or encoded once for many places).

    Args:
      model: the architecture; it need not be bound.
      params: the biLM's tree.
      vectors: [2, T, B, P] token vectors of both streams.
      carry: see `initial_carry`, of B rows.
      mask: [2, T, B] true on real tokens: elsewhere the outputs are zero and a row's state stands still.

    Returns:
      The outputs of the L layers, each [2, T, B, P], and the carry after the last real token.
    """

    found: Any = model.apply({"params": params}, vectors, carry, mask=mask, method="run_layers")
    return found


def stop_gradient(tree: Any) -> Any:
    """The tree as constants: nothing is differentiated with respect to it."""
    return jax.tree.map(jax.lax.stop_gradient, jax.tree.map(jnp.asarray, tree))
