"""Runs a frozen biLM over sentences of different lengths, in one program.

Shapes: B sentences, T words of the longest, W characters, U spelled words, N rows of a cache, L LSTM layers,
P projection.
"""

import enum
from typing import Any

import jax
import jax.numpy as jnp

from elmo_jax.characters import BEGIN_SENTENCE, BEGIN_WORD, CHARACTERS, END_SENTENCE, END_WORD, PADDING
from elmo_jax.config import DIRECTIONS
from elmo_jax.model.bilm import BiLM, initial_carry
from elmo_jax.model.precision import varying_like
from elmo_jax.types import Tree

# `<S>` and `</S>` as raw character ids: begin of word, the mark's own character, end of word
BOS_EOS = ((BEGIN_WORD, BEGIN_SENTENCE, END_WORD), (BEGIN_WORD, END_SENTENCE, END_WORD))


class Trainable(enum.Enum):
    """The part of the biLM that is trained with a task."""

    NONE = "none"
    LSTMS = "lstms"
    ALL = "all"


def sentence_layers(
    model: BiLM,
    tree: Tree,
    characters: jax.Array,
    words: jax.Array | None = None,
    cache: jax.Array | None = None,
    trainable: Trainable = Trainable.NONE,
) -> tuple[jax.Array, jax.Array]:
    """Computes the layers of sentences, each from a zero state, through which gradients flow into `trainable`.

    The `characters`, `words` and `cache` [N, P] are those of `ELMo`. A word that the cache or `characters` do not have,
    or with an id that does not exist, becomes NaN, as do sentences with zeros before a word, since compiled code cannot
    raise an exception.

    Returns:
      The layers [B, L+1, T+2, 2P], whose places include the boundary tokens `<S>` and `</S>`, and the mask of the words
      [B, T]. Layer 0 is the token vector twice. Layers are zero beyond the boundary tokens.
    """
    mask = (characters > 0).any(-1) if words is None else words != 0
    batch, steps = mask.shape
    trained = {Trainable.NONE: (), Trainable.LSTMS: DIRECTIONS, Trainable.ALL: tuple(tree)}[trainable]
    tree = {
        name: jax.tree.map(jnp.asarray, part if name in trained else jax.lax.stop_gradient(part))
        for name, part in tree.items()
    }
    vectors = _token_vectors(model, tree, characters, mask, words, cache)  # [B, T+2, P]
    vectors = jnp.where(has_gap(mask)[:, None, None], jnp.nan, vectors)
    length = mask.sum(-1, keepdims=True)  # [B, 1]
    position = jnp.arange(steps + 2)
    # The permutation that reverses each sentence with its boundary tokens, [B, T+2, 1]; it is its own inverse.
    turned = jnp.where(position < length + 2, length + 1 - position, position)[..., None]
    directions = len(model.config.directions)
    streams = jnp.stack([vectors, jnp.take_along_axis(vectors, turned, 1)][:directions])  # [2, B, T+2, P]
    real = jnp.broadcast_to((position < length + 2).T, (directions, steps + 2, batch))
    carry = varying_like(initial_carry(model.config, batch), (tree, vectors))
    run: Any = model.apply({"params": tree}, streams.swapaxes(1, 2), carry, mask=real, method="run_layers")
    outputs = [jnp.tile(vectors * real[0].T[..., None], directions)]
    for layer in run[0]:  # [2, T+2, B, P]
        forward, *backward = layer.swapaxes(1, 2)  # [B, T+2, P]
        outputs.append(jnp.concatenate([forward, *(jnp.take_along_axis(b, turned, 1) for b in backward)], -1))
    layers = jnp.stack(outputs, 1)
    return layers if trainable is not Trainable.NONE else jax.lax.stop_gradient(layers), mask


def has_gap(mask: jax.Array) -> jax.Array:
    """Returns which sentences of a mask [B, T] have a word after a place without one: bool [B]."""
    return (mask[:, 1:] & ~mask[:, :-1]).any(-1)


def _token_vectors(
    model: BiLM, tree: Tree, characters: jax.Array, mask: jax.Array, words: jax.Array | None, cache: jax.Array | None
) -> jax.Array:
    """Returns the token vectors [B, T+2, P] of <S>, the words, and </S> right after the last word."""
    size = model.config.char_cnn.max_characters
    batch, steps = mask.shape
    bos_eos = jnp.asarray([list(mark) + [PADDING] * (size - len(mark)) for mark in BOS_EOS], jnp.int32)  # [2, W]
    if words is None:
        characters = jnp.where(characters == 0, PADDING, characters - 1).reshape(-1, size)
        rows = 2 + jnp.arange(batch * steps).reshape(batch, steps)
    else:
        rows = jnp.where(words < 0, 1 - words, 0)
    characters = jnp.concatenate([bos_eos, characters.astype(jnp.int32)])  # [2 + U, W]
    exist = ((characters >= 0) & (characters < CHARACTERS)).all(-1, keepdims=True)
    encoded: Any = model.apply({"params": tree}, characters, method="encode")
    table = jnp.where(exist, encoded, jnp.nan)  # [2 + U, P]
    vectors = _rows(table, rows)  # [B, T, P]
    if words is not None:
        cache = jnp.full((1, table.shape[1]), jnp.nan, jnp.float32) if cache is None else jax.lax.stop_gradient(cache)
        vectors = jnp.where((words > 0)[..., None], _rows(cache, jnp.maximum(words - 1, 0)), vectors)
    begin = jnp.broadcast_to(table[0], (batch, 1, table.shape[-1]))
    vectors = jnp.concatenate([begin, vectors, begin], axis=1)  # [B, T+2, P]
    last = jnp.arange(steps + 2) == mask.sum(-1, keepdims=True) + 1
    return jnp.where(last[..., None], table[1], vectors)


def _rows(table: jax.Array, rows: jax.Array) -> jax.Array:
    return table.at[rows].get(mode="fill", fill_value=jnp.nan)
