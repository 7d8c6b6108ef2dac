"""Finds a document's candidate spans, computes their vectors and scores as mentions, and selects those that are kept.

Shapes: S sentences, T words of the longest sentence, N largest number of words of the document, W words of the widest
span, k largest number of kept spans, H features per word after the LSTM, V features per word from which heads are made,
F features of a width; in `Scorer`, F features and H hidden units per layer.

A candidate is a pair of a first word and a width, so candidates form an array [N, W]; its flat order is that of
(start, end). Neither time nor memory grows with the square of the number of words.

A span's vector is [first word; last word; width; head], where the head is a weighted mean of its words. To score
mentions, these vectors are not made for all candidates: the product of the scorer's first layer is computed per word
and per width, since the mean of the products is the product of the mean.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from elmo_jax.model.dropout import dropped
from elmo_jax.tasks.layers.dense import glorot_uniform, product
from elmo_jax.types import Tree


class WordIndices(NamedTuple):
    """The places of a document's words among its padded sentences."""

    indices: jax.Array  # int32 [N], the flat index in [S, T] of each word; S * T past the document's end
    real: jax.Array  # bool [N], true for words
    sentences: jax.Array  # int32 [N], the sentence of each word

    def flat(self, array: jax.Array) -> jax.Array:
        """Maps [S, T, D] to one row of the document's words, [N, D], zero past the document's end."""
        words = array.reshape(-1, array.shape[-1])[jnp.minimum(self.indices, array.shape[0] * array.shape[1] - 1)]
        return jnp.where(self.real[:, None], words, 0.0)


def document_of(mask: jax.Array, words: int) -> WordIndices:
    """Returns the places of a document's words; `mask` [S, T] is true on them, and N is at least their number."""
    (indices,) = jnp.nonzero(mask.ravel(), size=words, fill_value=mask.size)
    return WordIndices(indices, indices < mask.size, indices // mask.shape[1])


def candidates(document: WordIndices, widest: int) -> jax.Array:
    """Returns which pairs of a first word and a width are spans inside one sentence, bool [N, W]."""
    last = jnp.arange(len(document.indices))[:, None] + jnp.arange(widest)  # [N, W]
    inside = last < len(document.indices)
    last = jnp.where(inside, last, 0)
    return inside & document.real[last] & (document.sentences[last] == document.sentences[:, None])


class Kept(NamedTuple):
    """The kept spans in the order of (start, end), followed by empty places."""

    starts: jax.Array  # int32 [k], the first words
    widths: jax.Array  # int32 [k], the numbers of words minus one
    real: jax.Array  # bool [k], false for empty places


def keep_spans(scores: jax.Array, valid: jax.Array, words: jax.Array, ratio: float) -> Kept:
    """Keeps the best `ratio` * `words` candidates, without those that cross a kept one with a higher score.

    The `scores` are [N, W], and `valid` bool [N, W] is true for candidates.
    """
    size, widest = scores.shape
    most = min(max(int(np.float32(size) * np.float32(ratio)), 1), size * widest)  # k, in float32 as in the original
    number = jnp.minimum(jnp.floor(words.astype(jnp.float32) * np.float32(ratio)).astype(jnp.int32), valid.sum())
    order = jnp.argsort(jnp.where(valid, scores, -jnp.inf).ravel(), descending=True, stable=True)
    chosen = _without_crossing(order, valid, number)
    (chosen_spans,) = jnp.nonzero(chosen, size=most, fill_value=0)
    return Kept(chosen_spans // widest, chosen_spans % widest, jnp.arange(most) < chosen.sum())


_Search = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


def _without_crossing(order: jax.Array, valid: jax.Array, number: jax.Array) -> jax.Array:
    """Returns the first `number` candidates in `order` that cross no kept one before them, bool [N * W].

    Two spans cross if they overlap and neither contains the other. To find that out, it is enough to know for each word
    the end of the longest kept span that begins there, `reach` int32 [N + W], -1 for none, and the beginning of the
    longest one that ends there, `begin` int32 [N + W], N for none.
    """
    size, widest = valid.shape
    total = valid.sum()

    def more(state: _Search) -> jax.Array:
        return (state[0] < total) & (state[1] < number)

    def look(state: _Search) -> _Search:
        rank, kept, reach, begin, chosen = state
        start, width = order[rank] // widest, order[rank] % widest
        end = start + width
        word = jnp.arange(widest)  # the words of the candidate, from its first one on
        reaches = lax.dynamic_slice(reach, (start,), (widest,))
        begins = lax.dynamic_slice(begin, (start,), (widest,))
        crosses = ((word > 0) & (word <= width) & (reaches > end)) | ((word < width) & (begins < start))
        fits = ~crosses.any()
        reach = reach.at[start].max(jnp.where(fits, end, -1))
        begin = begin.at[end].min(jnp.where(fits, start, size))
        return rank + 1, kept + fits, reach, begin, chosen.at[order[rank]].set(fits)

    zero = jnp.zeros((), jnp.int32)
    reach, begin = jnp.full(size + widest, -1, jnp.int32), jnp.full(size + widest, size, jnp.int32)
    return lax.while_loop(more, look, (zero, zero, reach, begin, jnp.zeros(size * widest, bool)))[-1]


class Scorer(nn.Module):
    """The parameters of a network with one output: `hidden_0` to `hidden_{depth - 1}` and `output`."""

    features: int  # F
    hidden: int  # H
    depth: int  # the number of hidden layers

    @nn.compact
    def __call__(self) -> Tree:
        sizes = [self.features, *[self.hidden] * self.depth, 1]
        layers: Tree = {}
        for i, name in enumerate([*(f"hidden_{i}" for i in range(self.depth)), "output"]):
            kernel = self.param(f"{name}_kernel", glorot_uniform, (sizes[i], sizes[i + 1]))
            layers[name] = {"kernel": kernel, "bias": self.param(f"{name}_bias", glorot_uniform, (sizes[i + 1],))}
        return layers


def finish(params: Tree, first: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Computes the scores [...] from the first layer before its ReLU, [..., H], with the parameters of a `Scorer`.

    The fraction `rate` of the hidden units is dropped, none without a key.
    """
    depth = len(params) - 1
    keys = [None] * depth if key is None else [*jax.random.split(key, depth)]
    hidden, output = dropped(jax.nn.relu(first), rate, keys[0]), params["output"]
    for number in range(1, depth):
        layer = params[f"hidden_{number}"]
        hidden = dropped(jax.nn.relu(product(hidden, layer["kernel"]) + layer["bias"]), rate, keys[number])
    return product(hidden, output["kernel"][:, 0]) + output["bias"][0]


class Words(NamedTuple):
    """The vectors and weights from which spans are made."""

    hidden: jax.Array  # [N, H], the outputs of the LSTM
    heads: jax.Array  # [N, V], the vectors whose mean is the head
    # [N, W, W], the weights of the words from a candidate's first one on, by its width; they add up to 1
    weights: jax.Array
    widths: jax.Array  # [N, W, F], the vectors of the candidates' widths, with independent dropout

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        hidden = self.hidden.shape[-1]
        return hidden, hidden, self.widths.shape[-1], self.heads.shape[-1]


def windows(words: jax.Array, widest: int) -> jax.Array:
    """Returns each word of `words` [N, ...] and those after it, [N, W, ...]; the last word is repeated past the end."""
    indices = jnp.arange(words.shape[0])[:, None] + jnp.arange(widest)
    return words[jnp.minimum(indices, words.shape[0] - 1)]


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
    projected = windows(product(words.heads, of_head), widest)  # [N, W, H]
    heads = jnp.einsum("nwj,njh->nwh", words.weights, projected, precision=lax.Precision.HIGHEST)
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
