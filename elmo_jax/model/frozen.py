"""Applies a trained biLM: encodes words once, and runs the LSTM layers over their vectors, without dropout.

Shapes: U distinct words, W characters, B rows, T steps, P projection, C cells, L LSTM layers; a leading 2 is the
direction, forward then backward, with the backward stream already reversed.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from elmo_jax.model.bilm import BiLM
from elmo_jax.types import Tree


def encode(model: BiLM, params: Tree, characters: jax.Array, count: jax.Array | int | None = None) -> jax.Array:
    """Computes the context-free vectors of words.

    Args:
      model: the architecture; it need not be bound.
      params: the parameter tree of the biLM; a softmax in it is ignored.
      characters: [U, W] raw character ids (0 to 260).
      count: the number of the first rows that are words; all U unless given.

    Returns:
      The vectors, float32 [U, P].
    """

    vectors: Any = model.apply({"params": params}, characters, count, method="encode")
    return vectors


def run_layers(
    model: BiLM, params: Tree, vectors: jax.Array, carry: Tree, mask: jax.Array | None = None
) -> tuple[list[jax.Array], Tree]:
    """Runs the LSTM layers over given token vectors (from a cache, or encoded once for several places).

    Args:
      model: the architecture; it need not be bound.
      params: the parameter tree of the biLM.
      vectors: [2, T, B, P] the token vectors of both streams.
      carry: the initial LSTM state of B rows, see `initial_carry`.
      mask: [2, T, B] true for tokens, false for padding, where the outputs are zero and the state does not change.

    Returns:
      The outputs of the L layers, each [2, T, B, P], and the LSTM state after the last token.
    """

    found: Any = model.apply({"params": params}, vectors, carry, mask=mask, method="run_layers")
    return found


def stop_gradient(tree: Any) -> Any:
    """Returns the arrays of a tree as constants for differentiation."""
    return jax.tree.map(jax.lax.stop_gradient, jax.tree.map(jnp.asarray, tree))
