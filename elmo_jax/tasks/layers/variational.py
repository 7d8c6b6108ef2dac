"""Variational dropout: one mask per row and feature, the same at every time step (Gal and Ghahramani 2016).

Shapes: B rows, T words, D features.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp


def variational_mask(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """A dropout mask of zeros and 1 / (1 - rate), float32, for recurrent layers that apply it at every step.

    Args:
      key: of the random numbers.
      rate: share of the units dropped, at least 0 and below 1.
      shape: of the mask, such as [B, D].
    """
    kept = jax.random.bernoulli(key, 1 - rate, shape)
    return jnp.where(kept, jnp.float32(1 / (1 - rate)), 0.0)


class VariationalDropout(nn.Module):
    """Dropout of whole features of a row; needs a `dropout` key when not deterministic.

    Attributes:
      rate: share of the features dropped.
    """

    rate: float

    @nn.compact
    def __call__(self, inputs: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Drops features of `inputs` [B, T, D], the same ones at all steps of a row.

        Args:
          inputs: [B, T, D].
          deterministic: whether nothing is dropped.
        """
        return nn.Dropout(self.rate, broadcast_dims=(1,))(inputs, deterministic=deterministic)
