"""The weighted mix of the biLM's layers (paper, equation 1).

Shapes: B sentences, N layers (including the token vectors), T positions, D features.
"""

import enum
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from elmo_jax.errors import UserError
from elmo_jax.model.precision import standard_promotion
from elmo_jax.settings import choice

EPSILON = 1e-12  # original


class Layers(enum.Enum):
    """The layers that are used; instead of a member, the number j of an LSTM layer, 1 to L, means gamma * h_j."""

    ALL = "all"  # gamma * sum_j softmax(w)_j * h_j
    TOP = "top"  # gamma * h_L, as with bilm-tf's `use_top_only`
    TOKEN = "token"  # x, the token vector, which does not depend on the context, without gamma


class LayerNorm(enum.Enum):
    """The normalization of each layer before the mix, without affine parameters.

    The forms of the original programs have one mean and one variance per layer of the whole batch, so that a sentence's
    vectors depend on the other sentences; they act on the mix of all layers alone.
    """

    NONE = "none"
    TOKENS = "tokens"  # each vector by its own mean and variance (Ba et al. 2016), whichever layers are used
    WITHOUT_BOS_EOS = "without_bos_eos"  # over the words of the batch, as in bilm-tf
    WITH_BOS_EOS = "with_bos_eos"  # over the words and the boundary tokens of the batch, as in AllenNLP


class MixWeights(NamedTuple):
    """What a mix has learned.

    Attributes:
      weights: float64 [N] the softmaxed weights of the layers; empty if the mix is of one layer.
      gamma: the scale.
    """

    weights: np.ndarray
    gamma: float


def mix_weights(params: Any) -> dict[str, MixWeights]:
    """Returns what every mix of a model has learned (Figure 2 of the paper), by its path, such as `elmo/mix_0`.

    Args:
      params: the parameters of a Linen model, or all its variables; or an NNX model, or its state. The parameters of a
        mix are `gamma` [] and `weights` [N].
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(params)
    names = [jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value") for path, _ in paths]
    leaves = dict(zip(names, (leaf for _, leaf in paths), strict=True))
    mixes = {}
    for name in names:
        prefix = name.removesuffix("gamma")
        if name.split("/")[-1] == "gamma" and np.ndim(leaves[name]) == 0:
            raw = np.asarray(leaves.get(f"{prefix}weights", ()), np.float64)
            shares = np.exp(raw - raw.max(initial=-np.inf))
            mixes[prefix.rstrip("/")] = MixWeights(shares / shares.sum(), float(leaves[name]))
    return mixes


def chosen_layers(value: Any, number: int | None = None) -> Layers | int:
    """Returns the member of `Layers` that is or has this value, or the number of an LSTM layer, of `number`."""
    if type(value) is int and 1 <= value <= (value if number is None else number):
        return value
    try:
        return Layers(value)
    except ValueError:
        known = ", ".join(repr(member.value) for member in Layers)
        numbers = "" if number is None else f", 1 to {number}"
        raise UserError(f"layers: expected {known} or the number of an LSTM layer{numbers}, got {value!r}") from None


def check_array(name: str, array: Any, kind: Any, axes: int, expected: str) -> None:
    """Raises `UserError` unless an argument is an array with some number of axes whose numbers are of a kind."""
    if not hasattr(array, "dtype") or array.ndim != axes or not jnp.issubdtype(array.dtype, kind):
        actual = f"{array.dtype} {array.shape}" if hasattr(array, "dtype") else f"a {type(array).__name__}"
        raise UserError(f"{name}: expected an array of {expected}, got {actual}")


def at_least_float32(x: jax.Array) -> jax.Array:
    """Returns an array in float32, or in its own type if that is wider."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def normalize(layers: jax.Array, mask: jax.Array, axis_name: str | None = None) -> jax.Array:
    """Normalizes layers [B, N, T, D] by their mean and variance over all features of all positions that count.

    Args:
      layers: [B, N, T, D]; the result has meaningless values at positions that do not count.
      mask: [B, T] true for positions that count.
      axis_name: the mapped axis that the batch is divided over, if any (`shard_map`, `pmap`).
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
      layers: the layers that are used: a member of `Layers` or its name, or the number of an LSTM layer. Only ALL has
        `weights`, and TOKEN has no parameters.
      layer_norm: the normalization before the mix; a member of `LayerNorm` or its name. WITH_BOS_EOS and
        WITHOUT_BOS_EOS have the same effect in this module, since the mask decides which positions count.
      axis_name: the mapped axis that the batch is divided over, if any (see `normalize`).
      train_gamma: whether `gamma` gets a gradient.
    """

    layers: Layers | int = Layers.ALL
    layer_norm: LayerNorm = LayerNorm.NONE
    axis_name: str | None = None
    train_gamma: bool = True

    def __post_init__(self) -> None:
        self.layers = chosen_layers(self.layers)
        self.layer_norm = choice(LayerNorm, self.layer_norm, "layer_norm")
        super().__post_init__()

    @standard_promotion()
    @nn.compact
    def __call__(self, vectors: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Computes the mix of some layers.

        Args:
          vectors: [B, N, T, D] the layers, the token layer first.
          mask: [B, T] true for positions that count.

        Returns:
          The mix [B, T, D], zero where the mask is false, and the sum of the squares of the raw weights, 0 for one
          layer.

        Raises:
          UserError: an argument is not such an array, or has no such layer.
        """
        check_array("vectors", vectors, jnp.number, 4, "numbers [B, N, T, D]")
        check_array("mask", mask, jnp.generic, 2, "truth values [B, T]")
        top = vectors.shape[1] - 1
        layers = chosen_layers(self.layers, top)
        if layers is not Layers.ALL:
            layer = layers if isinstance(layers, int) else 0 if layers is Layers.TOKEN else top
            vectors = vectors[:, layer : layer + 1]
        vectors = at_least_float32(vectors)
        if self.layer_norm is LayerNorm.TOKENS:
            vectors = jax.nn.standardize(vectors, variance=vectors.var(-1, keepdims=True), epsilon=EPSILON)
        elif self.layer_norm is not LayerNorm.NONE and layers is Layers.ALL:
            vectors = normalize(vectors, mask, None if self.is_initializing() else self.axis_name)
        if layers is Layers.ALL:
            weights = self.param("weights", nn.initializers.zeros_init(), vectors.shape[1:2], jnp.float32)  # [N]
            mixed = jnp.einsum("n,bntd->btd", jax.nn.softmax(weights), vectors, precision=lax.Precision.HIGHEST)
            squares = jnp.sum(weights**2)
        else:
            mixed, squares = vectors[:, 0], jnp.zeros((), jnp.float32)
        if layers is not Layers.TOKEN:
            gamma = self.param("gamma", nn.initializers.ones_init(), (), jnp.float32)
            mixed = (gamma if self.train_gamma else lax.stop_gradient(gamma)) * mixed
        return jnp.where(mask[..., None], mixed, 0.0), squares
