"""The small character CNN of the task models: embedding, convolutions, ReLU, maximum over positions.

Shapes: W characters of the longest word, C ids, E embedding, F filters of one width, P windows.

It is trained with the task and has nothing to do with the biLM's token encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.tasks.layers.dense import uniform

_NARROW = 0.05  # the bound of document-qa's initial embeddings

Windows = Literal["independent", "allennlp"]
"""Which windows of a word take part in the maximum.

"independent": those that start at one of the word's characters and lie within the first `max_characters` places, so a
word's vector depends on that word alone.
"allennlp": all windows of the array, those of pure padding included, so a word's vector depends on the longest word of
its batch wherever a filter's bias is positive, and on how much of the last characters' windows fits.
"""


class CharCNN(nn.Module):
    """A vector per word from its characters.

    The parameters are `embedding` [C, E] and, for the i-th filter width, `filter_i_kernel` [width, E, F] and
    `filter_i_bias` [F].

    Attributes:
      characters: C, the number of ids, that of padding (0) included.
      embedding_dim: E.
      filters: pairs (width, F).
      max_characters: the characters of a word that are read; at least the widest filter.
      variant: which windows take part in the maximum.
      initial: how the embedding starts: Xavier-uniform, or uniform within 0.05.
      dropout: the share of the embedding's numbers that is dropped in training.
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
          ids: [..., W] character ids, 0 at padding behind a word's characters.
          deterministic: no dropout; otherwise the apply needs a `dropout` key.

        Returns:
          [..., sum of all F]. A word without characters has a vector of zeros, but that of its padding in the variant
          "allennlp".

        Raises:
          ValueError: a filter wider than `max_characters`, or more characters than that.
        """
        widest = max(width for width, _ in self.filters)
        if widest > self.max_characters or ids.shape[-1] > self.max_characters:
            raise ValueError(
                f"max_characters is {self.max_characters}; the widest filter has {widest}, the words {ids.shape[-1]}"
            )
        initial = nn.initializers.xavier_uniform() if self.initial == "xavier" else uniform(_NARROW)
        table = self.param("embedding", initial, (self.characters, self.embedding_dim))
        vectors = jnp.where(ids[..., None] > 0, table[ids], 0.0)  # [..., W, E]
        vectors = nn.Dropout(self.dropout)(vectors, deterministic=deterministic)
        length = (ids > 0).sum(-1)  # [...]
        found = [self._convolve(i, vectors, length) for i in range(len(self.filters))]
        return jnp.concatenate(found, axis=-1)

    def _convolve(self, i: int, vectors: jax.Array, length: jax.Array) -> jax.Array:
        """[..., W, E] -> [..., F] of the filters of one width."""
        width, number = self.filters[i]
        if self.variant == "independent":  # every window that starts at a character, as far as they are read
            size = min(vectors.shape[-2] + width - 1, self.max_characters)
        else:
            size = max(vectors.shape[-2], width)
        vectors = _pad(vectors, size)
        windows = size - width + 1  # P
        bound = uniform((width * self.embedding_dim) ** -0.5)  # PyTorch's default, which AllenNLP keeps
        kernel = self.param(f"filter_{i}_kernel", bound, (width, self.embedding_dim, number))
        bias = self.param(f"filter_{i}_bias", bound, (number,))
        parts = [vectors[..., k : k + windows, :] for k in range(width)]
        flat = jnp.concatenate(parts, axis=-1)  # [..., P, width * E]
        value = jnp.matmul(flat, kernel.reshape(-1, number), precision=lax.Precision.HIGHEST) + bias
        value = jax.nn.relu(value)  # [..., P, F]
        if self.variant == "independent":  # ReLU is never negative, so a window that does not count is a zero
            value = jnp.where((jnp.arange(windows) < length[..., None])[..., None], value, 0.0)
        return value.max(-2)


def _pad(vectors: jax.Array, size: int) -> jax.Array:
    """[..., W, E] -> [..., size, E] with zeros behind."""
    before = [(0, 0)] * (vectors.ndim - 2)
    return jnp.pad(vectors, [*before, (0, size - vectors.shape[-2]), (0, 0)])
