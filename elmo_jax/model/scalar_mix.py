"""The mix of the biLM's layers (paper, equation 1).

Shapes: B sentences, N layers (the token vectors among them), T positions, D features.
"""

from __future__ import annotations

import enum

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

EPSILON = 1e-12  # original


class Layers(enum.Enum):
    """What is mixed."""

    ALL = "all"  # gamma * sum_j softmax(w)_j * h_j
    TOP = "top"  # gamma * h_L: no weights, and no layer norm, as bilm-tf's `use_top_only`


class LayerNorm(enum.Enum):
    """Whether each layer is normalised before the mix, by one mean and one variance over the batch."""

    NONE = "none"
    WITHOUT_MARKS = "without_marks"  # over the words, as bilm-tf
    WITH_MARKS = "with_marks"  # over the words and the sentence marks, as AllenNLP


def normalise(layers: jax.Array, mask: jax.Array, axis_name: str | None = None) -> jax.Array:
    """One mean and one variance per layer, over all true positions and features of the batch; no affine.

    Args:
      layers: [B, N, T, D].
      mask: [B, T], true where a position counts.
      axis_name: the mapped axis over which the batch is spread, if it is (`shard_map`, `pmap`).

    Returns:
      [B, N, T, D]; at the other positions something of no meaning.
    """
    weight = mask[:, None, :, None].astype(layers.dtype)  # [B, 1, T, 1]

    def total(x: jax.Array, axes: tuple[int, ...] | None = None) -> jax.Array:
        x = x.sum(axes, keepdims=axes is not None)
        return x if axis_name is None else lax.psum(x, axis_name)

    number = jnp.maximum(total(weight), 1) * layers.shape[-1]  # a batch of empty sentences has none
    mean = total(layers * weight, (0, 2, 3)) / number  # [1, N, 1, 1]
    variance = total(((layers - mean) * weight) ** 2, (0, 2, 3)) / number
    return (layers - mean) / jnp.sqrt(variance + EPSILON)


class ScalarMix(nn.Module):
    """Equation 1, with parameters of its own: `gamma` [], starting at 1, and `weights` [N], starting at 0.

    Attributes:
      layers: all, or the top one.
      layer_norm: before the mix. Here WITH_MARKS and WITHOUT_MARKS are the same; the mask given makes the difference.
      axis_name: see `normalise`.
    """

    layers: Layers = Layers.ALL
    layer_norm: LayerNorm = LayerNorm.NONE
    axis_name: str | None = None

    @nn.compact
    def __call__(self, vectors: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mixes layers.

        Args:
          vectors: [B, N, T, D].
          mask: [B, T], true where a position counts.

        Returns:
          [B, T, D], zero where the mask is false; and the sum of the squares of the raw weights, 0 for TOP.
        """
        gamma = self.param("gamma", nn.initializers.ones_init(), ())
        if self.layers is Layers.TOP:
            mixed, squares = vectors[:, -1], jnp.zeros(())
        else:
            weights = self.param("weights", nn.initializers.zeros_init(), vectors.shape[1:2])  # [N]
            if self.layer_norm is not LayerNorm.NONE:
                vectors = normalise(vectors, mask, self.axis_name)
            mixed = jnp.einsum("n,bntd->btd", jax.nn.softmax(weights), vectors, precision=lax.Precision.HIGHEST)
            squares = jnp.sum(weights**2)
        return jnp.where(mask[..., None], gamma * mixed, 0.0), squares
