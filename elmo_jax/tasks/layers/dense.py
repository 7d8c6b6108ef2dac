"""Implements dense layers, their initial values, and attention, pooling and the loss over padded rows.

Shapes: B rows, T steps, N and M steps of two texts, D numbers of input, F features of the output, H columns of a block,
C classes.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax

from elmo_jax.model.bilm import uniform

Initial = Literal["torch", "xavier"]
"""The initial values of a layer: PyTorch's defaults, which AllenNLP's task models keep unless they say otherwise; or
those of AllenNLP's ESIM, Xavier-uniform input matrices, orthogonal recurrent matrices and zero biases.
"""


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns `a @ b` at full precision on accelerators too."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def block_orthogonal(blocks: int) -> nn.initializers.Initializer:
    """Returns an initializer of matrices [D, blocks * H] whose blocks [D, H] are independent orthogonal matrices."""

    def initialize(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        orthogonal = partial(nn.initializers.orthogonal(), shape=(shape[0], shape[1] // blocks), dtype=dtype)
        # A loop and not a batch: on a CPU, two factorizations of batches at once wait for each other's threads and
        # never end (seen with JAX 0.10.2 on 2 cores).
        return jnp.concatenate(lax.map(orthogonal, jax.random.split(key, blocks)), axis=1)

    return initialize


def glorot_uniform(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """Returns Glorot-uniform values of a matrix or a vector; a vector of n has n inputs and n outputs (TensorFlow)."""
    inputs, outputs = (shape[0], shape[0]) if len(shape) == 1 else shape
    bound = math.sqrt(6 / (inputs + outputs))
    return jax.random.uniform(key, shape, dtype, -bound, bound)


def each_direction(initializer: Any) -> nn.initializers.Initializer:
    """Returns an initializer that draws the values of each of the directions, the first axis, independently."""

    def initialize(key: jax.Array, shape: Sequence[int]) -> jax.Array:
        return jnp.stack([initializer(each, tuple(shape[1:])) for each in jax.random.split(key)])

    return initialize


class Dense(nn.Module):
    """Computes the product with a matrix plus a bias, in float32 at full precision.

    The parameters are `kernel` [D, F] and `bias` [F].
    """

    features: int  # F
    # "torch" draws both parameters from U(±1/sqrt(D)); "xavier" has a Xavier-uniform kernel and a zero bias
    initial: Initial = "torch"

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        size = inputs.shape[-1]
        if self.initial == "torch":
            kernel_init = bias_init = uniform(size**-0.5)
        else:
            kernel_init, bias_init = nn.initializers.xavier_uniform(), nn.initializers.zeros_init()
        kernel = self.param("kernel", kernel_init, (size, self.features))
        bias = self.param("bias", bias_init, (self.features,))
        return product(inputs, kernel) + bias


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

    The logits are [..., C], the labels int [...], and `real` bool [...] is false for what only fills up the batch.
    """
    # The others are zeroed before the softmax, so that even NaN in them does not reach a gradient.
    logits, labels = jnp.where(real[..., None], logits, 0.0), jnp.where(real, labels, 0)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.where(real, losses, 0.0).sum() / jnp.maximum(real.sum(), 1)
