"""Implements the small character CNN of the task models: embedding, convolutions, ReLU and maximum over windows.

Shapes: W characters of the longest word, C character ids, E numbers per embedding, F filters of one width, P windows.

It is trained with the task and is independent of the biLM's token encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.tasks.layers.dense import uniform
from elmo_jax.tasks.layers.dropout import Dropout

_NARROW = 0.05  # the bound of document-qa's initial embeddings

Windows = Literal["independent", "allennlp"]
"""The windows of a word that take part in the maximum.

With "independent", they are those that start at one of the word's characters and lie within the first `max_characters`
places, so a word's vector depends on that word alone. With "allennlp", they are all windows of the array, including
those of padding alone, so a word's vector also depends on the longest word of its batch.
"""


class CharCNN(nn.Module):
    """Computes a vector per word from the word's characters.

    The parameters are `embedding` [C, E] and, for the i-th filter width, `filter_i_kernel` [width, E, F] and
    `filter_i_bias` [F].

    Attributes:
      characters: C, the number of ids including that of padding, 0.
      embedding_dim: E.
      filters: the pairs (width, F).
      max_characters: the number of characters read per word, at least the widest filter.
      variant: the windows that take part in the maximum.
      initial: the initial embeddings, Xavier-uniform or uniform within 0.05.
      dropout: the fraction of the embeddings' numbers dropped in training.
    """

    characters: int
    embedding_dim: int = 16
    filters: Sequence[tuple[int, int]] = ((3, 128),)
    max_characters: int = 50
    variant: Windows = "independent"
    initial: Literal["xavier", "narrow"] = "xavier"
    dropout: float = 0.0

    @nn.compact
    def __call__(self, ids: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Encodes words.

        Args:
          ids: [..., W], the character ids, 0 at padding after a word's characters.
          deterministic: whether nothing is dropped; otherwise the apply needs a `dropout` key.

        Returns:
          The vectors [..., sum of all F]. That of a word without characters is zero or, in the variant "allennlp", that
          of padding.

        Raises:
          ValueError: a filter is wider than `max_characters`, or W is larger.
        """
        widest = max(width for width, _ in self.filters)
        if widest > self.max_characters or ids.shape[-1] > self.max_characters:
            raise ValueError(
                f"max_characters is {self.max_characters}; the widest filter has {widest}, the words {ids.shape[-1]}"
            )
        initial = nn.initializers.xavier_uniform() if self.initial == "xavier" else uniform(_NARROW)
        table = self.param("embedding", initial, (self.characters, self.embedding_dim))
        vectors = jnp.where(ids[..., None] > 0, table[ids], 0.0)  # [..., W, E]
        vectors = Dropout(self.dropout)(vectors, deterministic=deterministic)
        length = (ids > 0).sum(-1)  # [...]
        found = [self._convolve(i, vectors, length) for i in range(len(self.filters))]
        return jnp.concatenate(found, axis=-1)

    def _convolve(self, i: int, vectors: jax.Array, length: jax.Array) -> jax.Array:
        """Maps [..., W, E] to the maxima [..., F] of the filters of one width."""
        width, number = self.filters[i]
        if self.variant == "independent":  # windows that start at a character
            size = min(vectors.shape[-2] + width - 1, self.max_characters)
        else:
            size = max(vectors.shape[-2], width)
        vectors = _pad(vectors, size)
        windows = size - width + 1  # P
        bound = uniform((width * self.embedding_dim) ** -0.5)  # PyTorch's default bound, which AllenNLP keeps
        kernel = self.param(f"filter_{i}_kernel", bound, (width, self.embedding_dim, number))
        bias = self.param(f"filter_{i}_bias", bound, (number,))
        parts = [vectors[..., k : k + windows, :] for k in range(width)]
        flat = jnp.concatenate(parts, axis=-1)  # [..., P, width * E]
        value = jnp.matmul(flat, kernel.reshape(-1, number), precision=lax.Precision.HIGHEST) + bias
        value = jax.nn.relu(value)  # [..., P, F]
        if self.variant == "independent":  # a zero never exceeds the maximum, since ReLU is not negative
            value = jnp.where((jnp.arange(windows) < length[..., None])[..., None], value, 0.0)
        return value.max(-2)


def _pad(vectors: jax.Array, size: int) -> jax.Array:
    """Pads [..., W, E] with zeros at the end to [..., size, E]."""
    before = [(0, 0)] * (vectors.ndim - 2)
    return jnp.pad(vectors, [*before, (0, size - vectors.shape[-2]), (0, 0)])
