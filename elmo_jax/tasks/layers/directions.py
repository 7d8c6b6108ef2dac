"""Arranges both directions of a recurrent layer for one scan, in which each step is one product for both.

Shapes: T steps, B rows, H units per direction; an axis of 2 holds the forward and the backward direction.

The backward direction reads the steps in reverse order. Rows are padded at their end, so it reads a row's padding
first, where its state must not change.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def turn_backward(x: jax.Array) -> jax.Array:
    """Returns `x` [T, 2, ...] with the backward direction's steps reversed; the function is its own inverse."""
    return jnp.stack([x[:, 0], x[::-1, 1]], axis=1)


def real_steps(mask: jax.Array) -> jax.Array:
    """Returns whether each direction reads a word, bool [T, 2, B, 1], in the order in which it reads.

    Args:
      mask: [B, T], true on words.
    """
    return turn_backward(jnp.stack([mask.T, mask.T], axis=1)[..., None])


def side_by_side(hidden: jax.Array, mask: jax.Array) -> jax.Array:
    """Concatenates the outputs of both directions to [B, T, 2H], zero at padding.

    Args:
      hidden: [T, 2, B, H], the outputs in the order in which each direction reads.
      mask: [B, T], true on words.
    """
    both = turn_backward(hidden)
    outputs = jnp.concatenate([both[:, 0], both[:, 1]], axis=-1).swapaxes(0, 1)
    return jnp.where(mask[..., None], outputs, 0.0)
