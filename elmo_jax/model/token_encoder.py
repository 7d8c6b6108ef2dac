"""The parameters of the token encoder: their layout, and the initial values of bilm-tf.

Shapes: U words, W characters per word, P projection.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from elmo_jax.characters import CHARACTERS
from elmo_jax.config import CharCNNConfig
from elmo_jax.model.char_cnn import EncoderSettings, encode_words
from elmo_jax.model.precision import Precision
from elmo_jax.types import Tree


class TokenEncoder(nn.Module):
    """Computes context-free vectors from the characters of words (paper, section 3.1)."""

    config: CharCNNConfig  # the architecture of the char CNN
    projection: int  # P, the dimension of the vectors
    precision: Precision = Precision.FLOAT32  # the precision of the matrix products
    chunk: int = 512  # the number of words encoded at a time, which affects speed and memory only

    def __call__(self, characters: jax.Array, count: jax.Array | int | None = None) -> jax.Array:
        """Encodes words as `encode_words` does: [U, W] raw character ids -> [U, P]; `count` is U unless given."""
        count = jnp.asarray(characters.shape[0] if count is None else count, jnp.int32)
        return encode_words(self.parameters(), characters, count, self._settings)

    @property
    def _settings(self) -> EncoderSettings:
        return EncoderSettings(self.config, self.projection, self.precision, self.chunk)

    @nn.compact
    def parameters(self) -> Tree:
        """Returns the parameter tree."""
        params: Tree = {
            "char_embedding": self.param("char_embedding", uniform(1.0), (CHARACTERS, self.config.embedding_dim))
        }
        for i, (width, number) in enumerate(self.config.filters):
            shape = (width, self.config.embedding_dim, number)
            # original: uniform in ±0.05 for relu, normal with standard deviation 1 / sqrt(width * E) for tanh
            spread = (width * self.config.embedding_dim) ** -0.5
            init = uniform(0.05) if self.config.activation == "relu" else nn.initializers.normal(spread)
            params[f"filter_{i}"] = _Affine(shape, init, 0.0, name=f"filter_{i}")()
        features = self.config.features
        normal = nn.initializers.normal(features**-0.5)
        for i in range(self.config.highways):
            params[f"highway_{i}"] = _Highway(features, name=f"highway_{i}")()
        if self._settings.has_projection:
            params["projection"] = _Affine((features, self.projection), normal, 0.0, name="projection")()
        return params


def uniform(bound: float) -> nn.initializers.Initializer:
    """Returns an initializer that draws uniformly from [-bound, bound]."""

    def init(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class _Affine(nn.Module):
    """The kernel and the bias of one affine map."""

    shape: tuple[int, ...]
    kernel_init: nn.initializers.Initializer
    bias: float

    @nn.compact
    def __call__(self) -> Tree:
        return {
            "kernel": self.param("kernel", self.kernel_init, self.shape),
            "bias": self.param("bias", nn.initializers.constant(self.bias), self.shape[-1:]),
        }


class _Highway(nn.Module):
    """The carry gate and the transform of one highway layer.

    The gate's bias starts at -2 (original), so that the layer at first passes on most of its input.
    """

    features: int

    @nn.compact
    def __call__(self) -> Tree:
        normal = nn.initializers.normal(self.features**-0.5)
        shape = (self.features, self.features)
        return {
            "carry": _Affine(shape, normal, -2.0, name="carry")(),
            "transform": _Affine(shape, normal, 0.0, name="transform")(),
        }
