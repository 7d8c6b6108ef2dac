"""The weighted mix of the biLM's layers (paper, equation 1).

Shapes: B sentences, N layers (including the token vectors), T positions, D features.
"""

import enum
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.errors import UserError
from elmo_jax.model.precision import usual_promotion
from elmo_jax.settings import choice

EPSILON = 1e-12  # original


class Layers(enum.Enum):
    """The layers that are mixed."""

    ALL = "all"  # gamma * sum_j softmax(w)_j * h_j
    TOP = "top"  # gamma * h_L, without weights and layer norm, as with bilm-tf's `use_top_only`


class LayerNorm(enum.Enum):
    """The normalization of each layer before the mix, by one mean and one variance over the batch."""

    NONE = "none"
    WITHOUT_MARKS = "without_marks"  # over the words, as in bilm-tf
    WITH_MARKS = "with_marks"  # over the words and the sentence marks, as in AllenNLP


def check_array(name: str, array: Any, kind: Any, axes: int, expected: str) -> None:
    """Raises `UserError` unless an argument is an array with some number of axes whose numbers are of a kind."""
    if not hasattr(array, "dtype") or array.ndim != axes or not jnp.issubdtype(array.dtype, kind):
        found = f"{array.dtype} {array.shape}" if hasattr(array, "dtype") else f"a {type(array).__name__}"
        raise UserError(f"{name}: expected an array of {expected}, got {found}")


def at_least_float32(x: jax.Array) -> jax.Array:
    """Returns an array in float32, or in its own type if that is wider."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def normalize(layers: jax.Array, mask: jax.Array, axis_name: str | None = None) -> jax.Array:
    """Normalizes each layer by its mean and variance over all features of all positions that count in the batch.

    There are no affine parameters.

    Args:
      layers: [B, N, T, D] the layers.
      mask: [B, T] true for positions that count.
      axis_name: the mapped axis that the batch is divided over, if any (`shard_map`, `pmap`).

    Returns:
      The normalized layers [B, N, T, D]; the values at other positions are meaningless.
    """
    layers = at_least_float32(layers)  # the sums of a batch are beyond the range and the precision of narrower types
    weight = mask[:, None, :, None].astype(layers.dtype)  # [B, 1, T, 1]

    def total(x: jax.Array, axes: tuple[int, ...] | None = None) -> jax.Array:
        x = x.sum(axes, keepdims=axes is not None)
        return x if axis_name is None else lax.psum(x, axis_name)

    number = jnp.maximum(total(weight), 1) * layers.shape[-1]  # at least 1, since all sentences may be empty
    mean = total(layers * weight, (0, 2, 3)) / number  # [1, N, 1, 1]
    variance = total(((layers - mean) * weight) ** 2, (0, 2, 3)) / number
    return (layers - mean) / jnp.sqrt(variance + EPSILON)


class ScalarMix(nn.Module):
    """Equation 1 of the paper, with the parameters `gamma` [], initially 1, and `weights` [N], initially 0.

    Attributes:
      layers: whether all layers are mixed, or only the top one is used; a member of `Layers` or its name.
      layer_norm: the normalization before the mix; a member of `LayerNorm` or its name. WITH_MARKS and
        WITHOUT_MARKS have the same effect in this module, since the mask decides which positions count.
      axis_name: the mapped axis that the batch is divided over, if any (see `normalize`).
    """

    layers: Layers = Layers.ALL
    layer_norm: LayerNorm = LayerNorm.NONE
    axis_name: str | None = None

    def __post_init__(self) -> None:
        """Accepts names; raises `UserError` for a name that is none."""
        self.layers = choice(Layers, self.layers, "layers")
        self.layer_norm = choice(LayerNorm, self.layer_norm, "layer_norm")
        super().__post_init__()

    @usual_promotion()
    @nn.compact
    def __call__(self, vectors: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Computes the mix of some layers.

        Args:
          vectors: [B, N, T, D] the layers.
          mask: [B, T] true for positions that count.

        Returns:
          The mix [B, T, D], zero where the mask is false, and the sum of the squares of the raw weights, 0 for TOP.

        Raises:
          UserError: an argument is not such an array.
        """
        check_array("vectors", vectors, jnp.number, 4, "numbers [B, N, T, D]")
        check_array("mask", mask, jnp.generic, 2, "truth values [B, T]")
        vectors = at_least_float32(vectors)
        gamma = self.param("gamma", nn.initializers.ones_init(), (), jnp.float32)
        if self.layers is Layers.TOP:
            mixed, squares = vectors[:, -1], jnp.zeros((), jnp.float32)
        else:
            weights = self.param("weights", nn.initializers.zeros_init(), vectors.shape[1:2], jnp.float32)  # [N]
            if self.layer_norm is not LayerNorm.NONE:
                vectors = normalize(vectors, mask, self.axis_name)
            mixed = jnp.einsum("n,bntd->btd", jax.nn.softmax(weights), vectors, precision=lax.Precision.HIGHEST)
            squares = jnp.sum(weights**2)
        return jnp.where(mask[..., None], gamma * mixed, 0.0), squares
