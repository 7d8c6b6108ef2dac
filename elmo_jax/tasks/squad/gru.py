"""Implements the bidirectional GRU of document-qa, which is cuDNN's.

Shapes: T steps, B rows, D numbers of input, H units per direction; an axis of 2 holds the forward and the backward
direction.

The reset gate is applied after the product with U:

    r, z = sigmoid(W x + U h + b)      n = tanh(W_n x + b_n + r * (U_n h + c))      h' = (1 - z) * n + z * h

A row's state does not change at padding, so its outputs do not depend on the padding.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.tasks.layers.lstm import run_both
from elmo_jax.types import Tree


def bidirectional_gru(params: Tree, inputs: jax.Array, mask: jax.Array) -> jax.Array:
    """Runs both directions in one scan.

    Args:
      params: `kernel` [2, D, 3H] and `recurrent` [2, H, 3H] with columns r, z, n; `bias` [2, 3H]; and `recurrent_bias`
        [2, H], which is c in the equations of this module.
      inputs: [B, T, D].
      mask: [B, T], true on words; rows are padded at their end.

    Returns:
      [B, T, 2H], zero at padding.
    """
    read = jnp.einsum("btd,edz->tebz", inputs, params["kernel"], precision=lax.Precision.HIGHEST)  # [T, 2, B, 3H]
    units = params["recurrent"].shape[1]

    def step(hidden: jax.Array, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, word = at
        seen = jnp.matmul(hidden, params["recurrent"], precision=lax.Precision.HIGHEST)  # [2, B, 3H]
        r, z = jnp.split(jax.nn.sigmoid(x[..., : 2 * units] + seen[..., : 2 * units]), 2, axis=-1)
        n = jnp.tanh(x[..., 2 * units :] + r * (seen[..., 2 * units :] + params["recurrent_bias"][:, None]))
        new = jnp.where(word, (1 - z) * n + z * hidden, hidden)
        return new, new

    start = jnp.zeros((2, inputs.shape[0], units), read.dtype)
    return run_both(step, start, read + params["bias"][:, None], mask)


class BiGRU(nn.Module):
    """A bidirectional GRU; weights start truncated normal with standard deviation 0.05, biases at zero (original)."""

    units: int  # H

    @nn.compact
    def __call__(self, inputs: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps [B, T, D] to [B, T, 2H], zero at padding; see `bidirectional_gru`."""
        normal, zeros = nn.initializers.truncated_normal(0.05), nn.initializers.zeros_init()
        params = {
            "kernel": self.param("kernel", normal, (2, inputs.shape[-1], 3 * self.units)),
            "recurrent": self.param("recurrent", normal, (2, self.units, 3 * self.units)),
            "bias": self.param("bias", zeros, (2, 3 * self.units)),
            "recurrent_bias": self.param("recurrent_bias", zeros, (2, self.units)),
        }
        return bidirectional_gru(params, inputs, mask)
