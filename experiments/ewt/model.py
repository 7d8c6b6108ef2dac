"""Implements the tagger of parts of speech, and its training step.

Shapes: B sentences per batch, T words of the longest sentence, W characters per word, K tags, L LSTM layers of the
biLM, P dimension of its projection.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import elmo_jax
from ewt.arrays import Batch, batches
from ewt.recipe import Recipe
from ewt.treebank import TAGS


class Tagger(nn.Module):
    """A biLSTM over word vectors and a character CNN, with or without ELMo at its input and output (section 3.3)."""

    recipe: Recipe
    vocabulary_size: int
    elmo: elmo_jax.ELMo | None = None

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> tuple[jax.Array, jax.Array]:
        """Returns the logits [B, T, K] and the penalty [] of ELMo's weights."""
        recipe = self.recipe
        drop = nn.Dropout(recipe.dropout, deterministic=not train)
        inputs: list[jax.Array] = []
        mixes: Sequence[jax.Array] = []
        penalty = jnp.zeros(())
        if recipe.own_words:
            characters = nn.Embed(262, 16, name="characters")(batch.characters)  # [B, T, W, 16]
            spelling = nn.relu(nn.Conv(recipe.character_features, (3,), name="char_cnn")(characters).max(-2))
            known = nn.Embed(self.vocabulary_size, recipe.word_features, name="words")(batch.words)
            inputs = [drop(jnp.concatenate([known, spelling], -1))]
        if self.elmo:
            layers = batch.layers.swapaxes(1, 2)  # [B, L+1, T, 2P], in the order of `embed`
            mixes, _, penalty = self.elmo.mix(layers, batch.mask, deterministic=not train)
        forward, backward = (nn.RNN(nn.OptimizedLSTMCell(recipe.hidden)) for _ in range(2))
        hidden = nn.Bidirectional(forward, backward)(
            jnp.concatenate([*inputs, *mixes[:1]], -1), seq_lengths=batch.mask.sum(-1)
        )  # [B, T, 2 * hidden]
        return nn.Dense(len(TAGS), name="tags")(jnp.concatenate([drop(hidden), *mixes[1:]], -1)), penalty


def make_tagger(variant: str, recipe: Recipe, vocabulary_size: int, bilm: elmo_jax.EmbeddingBiLM) -> Tagger:
    """Returns the tagger of one of the `VARIANTS`."""
    if variant == "without":
        return Tagger(recipe, vocabulary_size)
    layers = elmo_jax.Layers.TOP if variant == "top" else elmo_jax.Layers.ALL
    elmo = bilm.elmo(
        num_mixes=2,
        layers=layers,
        layer_norm=elmo_jax.LayerNorm(recipe.layer_norm),
        dropout=recipe.dropout,
        regularization=recipe.regularization,
    )
    return Tagger(recipe, vocabulary_size, elmo)


@functools.partial(jax.jit, static_argnames=("tagger", "optimizer"), donate_argnames=("params", "state"))
def train_step(
    tagger: Tagger,
    optimizer: optax.GradientTransformation,
    params: Any,
    elmo: Any,
    state: Any,
    batch: Batch,
    key: jax.Array,
) -> tuple[Any, Any]:
    """Makes one update by the mean loss of the words; `elmo` is the fingerprint of the biLM, which is not trained."""

    def loss(params: Any) -> jax.Array:
        logits, penalty = tagger.apply({"params": params, "elmo": elmo}, batch, train=True, rngs={"dropout": key})
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.tags)
        return (losses * batch.mask).sum() / batch.mask.sum() + penalty

    updates, state = optimizer.update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state


@functools.partial(jax.jit, static_argnames="tagger")
def count_right(tagger: Tagger, variables: Any, batch: Batch) -> jax.Array:
    """Returns the number of words with the right tag."""
    logits, _ = tagger.apply(variables, batch)
    return ((logits.argmax(-1) == batch.tags) & batch.mask).sum()


def accuracy(tagger: Tagger, variables: Any, sentences: Sequence[Batch]) -> float:
    """Returns the share of words with the right tag, in percent."""
    right = sum(int(count_right(tagger, variables, batch)) for batch in batches(sentences, tagger.recipe.batch_size))
    return 100 * right / sum(len(sentence.words) for sentence in sentences)
