"""Implements pooling over the steps of a row that exist.

Shapes: B rows, T steps, D features per step. All masks are [B, T], true on steps that exist.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.tasks.layers.attention import masked_softmax
from elmo_jax.tasks.layers.dense import Dense

_FILL = 1e7  # AllenNLP's value at padding, which no minimum reaches; its negative is for maxima


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
        weights = masked_softmax(scores, mask)
        return jnp.einsum("bt,btd->bd", weights, vectors, precision=lax.Precision.HIGHEST)
