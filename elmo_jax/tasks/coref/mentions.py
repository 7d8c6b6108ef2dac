"""Computes the vectors of spans and their scores as mentions.

Shapes: N words of the document, W words of the widest span, k spans, H features per word after the LSTM, V features per
word from which heads are made, F features of a width.

A span's vector is [first word; last word; width; head], where the head is a weighted mean of its words. To score
mentions, these vectors are not made for all candidates: the product of the first layer is computed per word and per
width, since the mean of the products is the product of the mean.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from elmo_jax.tasks.coref.scorer import finish
from elmo_jax.tasks.coref.spans import Kept
from elmo_jax.tasks.layers.dense import product
from elmo_jax.types import Tree


class Words(NamedTuple):
    """The vectors and weights from which spans are made."""

    hidden: jax.Array  # [N, H], the outputs of the LSTM
    heads: jax.Array  # [N, V], the vectors whose mean is the head
    # [N, W, W], the weights of the words from a candidate's first one on, by its width; they add up to 1
    weights: jax.Array
    widths: jax.Array  # [N, W, F], the vectors of the candidates' widths, with independent dropout

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The number of features of each part of a span's vector, in order."""
        hidden = self.hidden.shape[-1]
        return hidden, hidden, self.widths.shape[-1], self.heads.shape[-1]


def windows(words: jax.Array, widest: int) -> jax.Array:
    """Returns each word of `words` [N, ...] and those after it, [N, W, ...]; the last word is repeated past the end."""
    places = jnp.arange(words.shape[0])[:, None] + jnp.arange(widest)
    return words[jnp.minimum(places, words.shape[0] - 1)]


def head_weights(scores: jax.Array, widest: int) -> jax.Array:
    """Returns the softmax of the scores [N] of the words inside each candidate: [N, W, W], zero past its last word."""
    inside = jnp.arange(widest) <= jnp.arange(widest)[:, None]  # [W, W], width and word
    return jax.nn.softmax(jnp.where(inside, windows(scores, widest)[:, None], -jnp.inf))


def mention_scores(params: Tree, words: Words, rate: float, key: jax.Array | None) -> jax.Array:
    """Returns the scores [N, W] of all candidates by a `Scorer`; elsewhere the values are arbitrary.

    The fraction `rate` of the hidden units is dropped, none without a key.
    """
    widest = words.widths.shape[1]
    first = params["hidden_0"]
    of_start, of_end, of_width, of_head = jnp.split(first["kernel"], np.cumsum(words.sizes)[:-1])
    projected = product(words.heads, of_head)  # [N, 150]
    heads = jnp.einsum(
        "nwj,njh->nwh", words.weights, windows(projected, widest), precision=lax.Precision.HIGHEST
    )  # [N, W, 150]
    ends = windows(product(words.hidden, of_end), widest)
    starts = product(words.hidden, of_start)[:, None] + first["bias"]
    return finish(params, starts + ends + product(words.widths, of_width) + heads, rate, key)


def span_vectors(words: Words, kept: Kept) -> jax.Array:
    """Returns the vectors [k, 2 H + F + V] of the kept spans."""
    widest = words.widths.shape[1]
    inside = jnp.minimum(kept.starts[:, None] + jnp.arange(widest), words.heads.shape[0] - 1)  # [k, W]
    weights = words.weights[kept.starts, kept.widths]  # [k, W]
    heads = jnp.einsum("kj,kjv->kv", weights, words.heads[inside], precision=lax.Precision.HIGHEST)
    first, last = words.hidden[kept.starts], words.hidden[kept.starts + kept.widths]
    return jnp.concatenate([first, last, words.widths[kept.starts, kept.widths], heads], axis=-1)
