"""Pooling over the steps of a row that exist.

Shapes: B rows, T steps, D features. All masks are [B, T], true on steps that exist.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.tasks.layers.attention import masked_softmax
from elmo_jax.tasks.layers.dense import Dense, Initial

_FILL = 1e7  # AllenNLP's: below (above) it lies no real number whose maximum (minimum) is taken


def masked_max(vectors: jax.Array, mask: jax.Array) -> jax.Array:
    """The maximum over steps: [B, T, D] gives [B, D]; -1e7 in a row without any."""
    return jnp.where(mask[..., None], vectors, -_FILL).max(1)


def masked_min(vectors: jax.Array, mask: jax.Array) -> jax.Array:
    """The minimum over steps: [B, T, D] gives [B, D]; 1e7 in a row without any."""
    return jnp.where(mask[..., None], vectors, _FILL).min(1)


def masked_mean(vectors: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean over steps: [B, T, D] gives [B, D]; zero in a row without any."""
    number = jnp.maximum(mask.sum(1, keepdims=True), 1)
    return jnp.where(mask[..., None], vectors, 0.0).sum(1) / number


class SelfAttentivePooling(nn.Module):
    """The sum over steps by weights that are the softmax of one learned linear function of each (Lin et al. 2017).

    Attributes:
      initial: see `Dense`.
    """

    initial: Initial = "torch"

    @nn.compact
    def __call__(self, vectors: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps [B, T, D] to [B, D]; zero in a row without any step."""
        scores = Dense(1, self.initial, name="score")(vectors)[..., 0]  # [B, T]
        weights = masked_softmax(scores, mask)
        return jnp.einsum("bt,btd->bd", weights, vectors, precision=lax.Precision.HIGHEST)
