"""Implements variational dropout, whose mask is the same at all time steps of a row (Gal and Ghahramani 2016).

Shapes: B rows, T words, D features per word.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp


def variational_mask(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """Returns a float32 mask of zeros and 1 / (1 - rate), for recurrent layers that apply it at every step.

    Args:
      key: the random key.
      rate: the fraction of the units that is dropped, at least 0 and below 1.
      shape: the shape of the mask, such as [B, D].
    """
    kept = jax.random.bernoulli(key, 1 - rate, shape)
    return jnp.where(kept, jnp.float32(1 / (1 - rate)), 0.0)


class VariationalDropout(nn.Module):
    """Drops whole features of a row; needs a `dropout` key unless the call is deterministic.

    Attributes:
      rate: the fraction of the features that is dropped.
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
