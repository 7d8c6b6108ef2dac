"""Arranges both directions of a recurrent layer for one scan, in which each step is one product for both.

Shapes: T steps, B rows, H units per direction; an axis of 2 holds the forward and the backward direction.

The backward direction reads the steps in reverse order. Rows are padded at their end, so it reads a row's padding
first, where its state must not change.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def run_both(step: Any, start: Any, read: jax.Array, mask: jax.Array) -> jax.Array:
    """Runs both directions of a layer in one scan.

    Args:
      step: maps the state and, of one step, `read` [2, B, ...] and whether it is a word [2, B, 1] to the new state and
        its output [2, B, H].
      start: the state before the first step.
      read: [T, 2, B, ...], what each direction reads, both in the order of the words.
      mask: [B, T], true on words.

    Returns:
      The outputs of both directions next to each other, [B, T, 2H], zero at padding.
    """
    real = turn_backward(jnp.stack([mask.T, mask.T], axis=1)[..., None])
    _, hidden = lax.scan(step, start, (turn_backward(read), real))
    both = turn_backward(hidden)
    outputs = jnp.concatenate([both[:, 0], both[:, 1]], axis=-1).swapaxes(0, 1)
    return jnp.where(mask[..., None], outputs, 0.0)


def turn_backward(x: jax.Array) -> jax.Array:
    """Returns `x` [T, 2, ...] with the backward direction's steps reversed; the function is its own inverse."""
    return jnp.stack([x[:, 0], x[::-1, 1]], axis=1)
