"""The losses of the task models.

Shapes: B rows, T words of the longest row, C classes.
"""

import jax
import jax.numpy as jnp


def mean_cross_entropy(logits: jax.Array, labels: jax.Array, real: jax.Array) -> jax.Array:
    """Returns the mean cross-entropy [] over the rows that exist; zero for a batch without such rows.

    Args:
      logits: [B, C].
      labels: int [B], arbitrary in the other rows.
      real: [B], true for rows that exist; the others only fill up the batch.
    """
    # The other rows are zeroed before the softmax, so that even NaN in them does not reach a gradient.
    logits = jnp.where(real[:, None], logits, 0.0)
    labels = jnp.where(real, labels, 0)
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)[:, 0]  # [B]
    return jnp.where(real, losses, 0.0).sum() / jnp.maximum(real.sum(), 1)
