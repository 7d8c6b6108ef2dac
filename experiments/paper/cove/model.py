"""The attentional translation LSTM whose encoder gives CoVe (McCann et al. 2017, sections 3 and 4).

Shapes: B sentence pairs, N English words, U German words, D numbers per English word vector, H units per direction of
the encoder, V German words with a row in the softmax.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from elmo_jax.model.dropout import Dropout
from elmo_jax.tasks.layers.dense import Dense, dot_product_scores, product
from elmo_jax.tasks.layers.recurrent import BiLSTM

DROPOUT = 0.2  # on the outputs of all LSTM layers, in training (McCann et al., section 4)


class Encoder(nn.Module):
    """A biLSTM of two layers, each reading both directions of the one below."""

    size: int  # H

    @nn.compact
    def __call__(self, vectors: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> list[jax.Array]:
        """Maps word vectors [B, N, D] and a mask [B, N] to the outputs of both layers [B, N, 2H], zero at padding."""
        first = BiLSTM(self.size, name="layer_1")(vectors, mask)
        read = Dropout(DROPOUT)(first, deterministic=deterministic)
        return [first, BiLSTM(self.size, name="layer_2")(read, mask)]


class DecoderStep(nn.Module):
    """One step of the decoder: two LSTM layers and attention to the English words."""

    size: int  # 2H
    deterministic: bool

    @nn.compact
    def __call__(
        self, carry: Any, previous: jax.Array, english: jax.Array, keys: jax.Array, mask: jax.Array
    ) -> tuple[Any, jax.Array]:
        """Returns the new carry, and the context-adjusted state tanh(W [context; h]) [B, 2H], which is part of it.

        `previous` [B, H] is the embedding of the previous German word, `english` [B, N, 2H] the outputs of the encoder
        where `mask` [B, N] is true, and `keys` their product with the matrix of the general attention of Luong (2015).
        """
        lower, upper, adjusted = carry
        lower, read = nn.OptimizedLSTMCell(self.size, name="layer_1")(lower, jnp.concatenate([previous, adjusted], -1))
        read = Dropout(DROPOUT)(read, deterministic=self.deterministic)
        upper, h = nn.OptimizedLSTMCell(self.size, name="layer_2")(upper, read)
        weights = jax.nn.softmax(dot_product_scores(h[:, None], keys), where=mask[:, None])
        context = product(weights, english)[:, 0]
        adjusted = jnp.tanh(Dense(self.size, name="adjust")(jnp.concatenate([context, h], -1)))
        return (lower, upper, adjusted), adjusted


class Translator(nn.Module):
    """Predicts each German word from the words before it and from the English sentence."""

    size: int  # H
    words: int  # V

    @nn.compact
    def __call__(self, vectors: jax.Array, mask: jax.Array, german: jax.Array, deterministic: bool = True) -> jax.Array:
        """Returns the negative log-probability of each German word, [B, U].

        `vectors` [B, N, D] are those of the English words, on which `mask` [B, N] is true; `german` [B, U] has ids
        below V, of which 0 stands before the first word.
        """
        _, english = Encoder(self.size, name="encoder")(vectors, mask, deterministic=deterministic)
        english = Dropout(DROPOUT)(english, deterministic=deterministic)
        keys = nn.Dense(2 * self.size, use_bias=False, name="attention")(english)
        previous = nn.Embed(self.words, self.size, name="embedding")(jnp.pad(german, ((0, 0), (1, 0)))[:, :-1])
        zero = jnp.zeros((len(german), 2 * self.size))
        decode = nn.scan(
            DecoderStep,
            variable_broadcast="params",
            split_rngs={"params": False, "dropout": True},
            in_axes=(1, nn.broadcast, nn.broadcast, nn.broadcast),
            out_axes=1,
        )(2 * self.size, deterministic, name="decoder")
        _, adjusted = decode(((zero, zero), (zero, zero), zero), previous, english, keys, mask)
        adjusted = Dropout(DROPOUT)(adjusted, deterministic=deterministic)
        logits = Dense(self.words, name="softmax")(adjusted)
        return optax.softmax_cross_entropy_with_integer_labels(logits, german)
