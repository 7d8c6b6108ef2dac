"""Implements the small character CNN of the task models: embedding, convolutions, ReLU and maximum over windows.

Shapes: W characters of the longest word, C character ids, E numbers per embedding, F filters of one width, P windows.

It is trained with the task and is independent of the biLM's token encoder.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.model.dropout import Dropout
from elmo_jax.model.token_encoder import uniform
from elmo_jax.tasks.core.config import CharactersConfig

_NARROW = 0.05  # the bound of document-qa's initial embeddings


class CharCNN(nn.Module):
    """Computes a vector per word from the word's characters.

    The parameters are `embedding` [C, E] and, for the i-th filter width, `filter_i_kernel` [width, E, F] and
    `filter_i_bias` [F].

    The windows that take part in the maximum are those that start at one of the word's characters and lie within the
    first `max_characters` places. Unlike in AllenNLP, a word's vector thus depends on that word alone.
    """

    characters: int  # C, the number of ids including that of padding, 0
    config: CharactersConfig  # E, the pairs (width, F) and the other settings

    @nn.compact
    def __call__(self, ids: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Maps ids [..., W], 0 at padding after a word's characters, to vectors [..., sum of all F].

        A word without characters has zeros.

        Raises:
          ValueError: W is larger than both `max_characters` and the widest filter.
        """
        if ids.shape[-1] > self._most:
            raise ValueError(f"words have {ids.shape[-1]} characters, more than {self._most}")
        config = self.config
        initial = nn.initializers.xavier_uniform() if config.initial == "xavier" else uniform(_NARROW)
        table = self.param("embedding", initial, (self.characters, config.embedding_dim))
        vectors = jnp.where(ids[..., None] > 0, table[ids], 0.0)  # [..., W, E]
        vectors = Dropout(config.dropout)(vectors, deterministic=deterministic)
        length = (ids > 0).sum(-1)  # [...]
        found = [self._convolve(i, vectors, length) for i in range(len(config.filters))]
        return jnp.concatenate(found, axis=-1)

    @property
    def _most(self) -> int:
        """The number of characters read per word, at least the width of the widest filter."""
        return max(self.config.max_characters, *(width for width, _ in self.config.filters))

    def _convolve(self, i: int, vectors: jax.Array, length: jax.Array) -> jax.Array:
        """Maps [..., W, E] to the maxima [..., F] of the filters of one width."""
        width, number = self.config.filters[i]
        size = min(vectors.shape[-2] + width - 1, self._most)
        vectors = jnp.pad(vectors, [*[(0, 0)] * (vectors.ndim - 2), (0, size - vectors.shape[-2]), (0, 0)])
        windows = size - width + 1  # P
        bound = uniform((width * self.config.embedding_dim) ** -0.5)  # PyTorch's default bound, which AllenNLP keeps
        kernel = self.param(f"filter_{i}_kernel", bound, (width, self.config.embedding_dim, number))
        bias = self.param(f"filter_{i}_bias", bound, (number,))
        parts = [vectors[..., k : k + windows, :] for k in range(width)]
        flat = jnp.concatenate(parts, axis=-1)  # [..., P, width * E]
        value = jnp.matmul(flat, kernel.reshape(-1, number), precision=lax.Precision.HIGHEST) + bias
        value = jax.nn.relu(value)  # [..., P, F]
        inside = (jnp.arange(windows) < length[..., None])[..., None]  # the windows that start at a character
        return jnp.where(inside, value, 0.0).max(-2)  # a zero never exceeds the maximum, since ReLU is not negative
