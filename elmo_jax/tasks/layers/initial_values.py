"""Defines initializers that Flax does not have."""

import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


def block_orthogonal(blocks: int) -> nn.initializers.Initializer:
    """Returns an initializer of matrices [D, blocks * H] whose blocks [D, H] are independent orthogonal matrices."""
    orthogonal = nn.initializers.orthogonal()

    def initialize(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        rows, columns = shape
        shape = (rows, columns // blocks)
        # A loop and not a batch: on a CPU, two factorizations of batches at once wait for each other's threads and
        # never end (seen with JAX 0.10.2 on 2 cores).
        each = jax.lax.map(lambda key: orthogonal(key, shape, dtype), jax.random.split(key, blocks))  # [blocks, D, H]
        return jnp.concatenate(each, axis=1)

    return initialize


def glorot_uniform(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """Returns Glorot-uniform values of a matrix or a vector; a vector of n has n inputs and n outputs (TensorFlow)."""
    inputs, outputs = (shape[0], shape[0]) if len(shape) == 1 else shape
    bound = math.sqrt(6 / (inputs + outputs))
    return jax.random.uniform(key, shape, dtype, -bound, bound)
