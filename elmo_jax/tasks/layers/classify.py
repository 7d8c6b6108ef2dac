"""The loss of models that give a text one class.

Shapes: B rows, C classes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def mean_cross_entropy(logits: jax.Array, labels: jax.Array, real: jax.Array) -> jax.Array:
    """The mean cross-entropy over rows that exist.

    Args:
      logits: [B, C].
      labels: int [B]; anything in the other rows.
      real: [B], true on rows that exist; the others only fill a batch up.

    Returns:
      []; zero in a batch without rows.
    """
    # zeros before the softmax, so that whatever stands in the other rows leaves no trace in a gradient
    logits = jnp.where(real[:, None], logits, 0.0)
    labels = jnp.where(real, labels, 0)
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)[:, 0]  # [B]
    return jnp.where(real, losses, 0.0).sum() / jnp.maximum(real.sum(), 1)
