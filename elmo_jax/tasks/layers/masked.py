"""Operations on padded rows: attention between two texts, pooling over steps, and the loss over rows.

Shapes: B rows, T steps, N and M steps of two texts, D features per step, C classes.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax

from elmo_jax.tasks.layers.dense import Dense, product

_FILL = 1e7  # AllenNLP's value at padding, which no minimum reaches; its negative is for maxima


def dot_product_scores(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Maps queries [B, N, D] and keys [B, M, D] to the unscaled scores `q_i · k_j`, [B, N, M]."""
    return product(queries, keys.swapaxes(1, 2))


def masked_max(vectors: jax.Array, mask: jax.Array) -> jax.Array:
    """Maps [B, T, D] to the maxima over steps [B, D]; -1e7 for a row without steps."""
    return jnp.where(mask[..., None], vectors, -_FILL).max(1)


def masked_min(vectors: jax.Array, mask: jax.Array) -> jax.Array:
    """Maps [B, T, D] to the minima over steps [B, D]; 1e7 for a row without steps."""
    return jnp.where(mask[..., None], vectors, _FILL).min(1)


def masked_mean(vectors: jax.Array, mask: jax.Array) -> jax.Array:
    """Maps [B, T, D] to the means over steps [B, D]; zero for a row without steps."""
    number = jnp.maximum(mask.sum(1, keepdims=True), 1)
    return jnp.where(mask[..., None], vectors, 0.0).sum(1) / number


class SelfAttentivePooling(nn.Module):
    """Computes the sum over steps with weights that are the softmax of a learned linear function (Lin et al. 2017)."""

    @nn.compact
    def __call__(self, vectors: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps [B, T, D] to the sums [B, D]; zero for a row without steps."""
        scores = Dense(1, name="score")(vectors)[..., 0]  # [B, T]
        weights = jax.nn.softmax(scores, where=mask)
        return jnp.einsum("bt,btd->bd", weights, vectors, precision=lax.Precision.HIGHEST)


def mean_cross_entropy(logits: jax.Array, labels: jax.Array, real: jax.Array) -> jax.Array:
    """Returns the mean cross-entropy [] over the rows, or words, that exist; zero for a batch without any.

    Args:
      logits: [..., C].
      labels: int [...], arbitrary where `real` is false.
      real: bool [...]; the others only fill up the batch.
    """
    # The others are zeroed before the softmax, so that even NaN in them does not reach a gradient.
    logits, labels = jnp.where(real[..., None], logits, 0.0), jnp.where(real, labels, 0)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.where(real, losses, 0.0).sum() / jnp.maximum(real.sum(), 1)
