"""Implements maxout layers (Goodfellow et al. 2013), the output layers of the BCN (McCann et al. 2017).

Shapes: D numbers of input, F features of a layer's output, K linear functions per feature.
"""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax

from elmo_jax.tasks.layers.dense import Dense, Initial
from elmo_jax.tasks.layers.dropout import Dropout


class Maxout(nn.Module):
    """Layers whose units are maxima of K linear functions, with dropout after every layer.

    The parameters are `dense_i` with `kernel` [D, F * K], in which the K functions of a unit are adjacent.

    Attributes:
      sizes: F of each layer.
      dropouts: the fraction of the outputs that is dropped, for each layer.
      pool: K.
      initial: see `Dense`.
    """

    sizes: Sequence[int]
    dropouts: Sequence[float]
    pool: int = 4
    initial: Initial = "torch"

    @nn.compact
    def __call__(self, inputs: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Maps [..., D] to [..., F] of the last layer."""
        for i, (size, dropout) in enumerate(zip(self.sizes, self.dropouts, strict=True)):
            pieces = Dense(size * self.pool, self.initial, name=f"dense_{i}")(inputs)
            inputs = pieces.reshape(*pieces.shape[:-1], size, self.pool).max(-1)  # [..., F]
            inputs = Dropout(dropout)(inputs, deterministic=deterministic)
        return inputs
