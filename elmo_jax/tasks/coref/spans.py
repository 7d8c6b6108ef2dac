"""Finds the candidate spans of a document and selects those that are kept.

Shapes: S sentences, T words of the longest sentence, N largest number of words of the document, W words of the widest
span, k largest number of kept spans.

A candidate is a pair of a first word and a width, so candidates form an array [N, W]; its flat order is that of
(start, end). Neither time nor memory grows with the square of the number of words.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class WordPlaces(NamedTuple):
    """The places of a document's words among its padded sentences."""

    places: jax.Array  # int32 [N], the flat index in [S, T] of each word; S * T past the document's end
    real: jax.Array  # bool [N], true for words
    sentences: jax.Array  # int32 [N], the sentence of each word

    def flat(self, array: jax.Array) -> jax.Array:
        """Returns `array` [S, T, D] as one row of the document's words, [N, D], zero past the document's end."""
        words = array.reshape(-1, array.shape[-1])[jnp.minimum(self.places, array.shape[0] * array.shape[1] - 1)]
        return jnp.where(self.real[:, None], words, 0.0)


def document_of(mask: jax.Array, words: int) -> WordPlaces:
    """Returns the places of a document's words; `mask` [S, T] is true on them, and N is at least their number."""
    (places,) = jnp.nonzero(mask.ravel(), size=words, fill_value=mask.size)
    return WordPlaces(places, places < mask.size, places // mask.shape[1])


def candidates(document: WordPlaces, widest: int) -> jax.Array:
    """Returns which pairs of a first word and a width are spans inside one sentence, bool [N, W]."""
    last = jnp.arange(len(document.places))[:, None] + jnp.arange(widest)  # [N, W]
    inside = last < len(document.places)
    last = jnp.where(inside, last, 0)
    return inside & document.real[last] & (document.sentences[last] == document.sentences[:, None])


class Kept(NamedTuple):
    """The kept spans in the order of (start, end), followed by empty places."""

    starts: jax.Array  # int32 [k], the first words
    widths: jax.Array  # int32 [k], the numbers of words minus one
    real: jax.Array  # bool [k], false for empty places


def keep_spans(scores: jax.Array, valid: jax.Array, words: jax.Array, ratio: float) -> Kept:
    """Keeps the best `ratio` * `words` candidates, without those that cross a kept one with a higher score.

    Args:
      scores: [N, W], the score of each candidate.
      valid: bool [N, W], true for candidates.
      words: [], the number of words of the document.
      ratio: the number of kept spans per word.
    """
    size, widest = scores.shape
    most = min(max(int(np.float32(size) * np.float32(ratio)), 1), size * widest)  # k, in float32 as in the original
    number = jnp.minimum(jnp.floor(words.astype(jnp.float32) * np.float32(ratio)).astype(jnp.int32), valid.sum())
    order = jnp.argsort(jnp.where(valid, scores, -jnp.inf).ravel(), descending=True, stable=True)
    chosen = _without_crossing(order, valid, number)
    (found,) = jnp.nonzero(chosen, size=most, fill_value=0)
    real = jnp.arange(most) < chosen.sum()
    return Kept(found // widest, found % widest, real)


class _Search(NamedTuple):
    """The state of the search after some candidates."""

    place: jax.Array  # [], the place of the next candidate in the order
    kept: jax.Array  # [], the number of kept candidates so far
    reach: jax.Array  # int32 [N + W], the last word of the longest kept span that begins at each word; -1 for none
    begin: jax.Array  # int32 [N + W], the first word of the longest kept span that ends at each word; N for none
    chosen: jax.Array  # bool [N * W], true for kept candidates


def _without_crossing(order: jax.Array, valid: jax.Array, number: jax.Array) -> jax.Array:
    """Returns the first `number` candidates in `order` that cross no kept one before them, bool [N * W].

    Two spans cross if they overlap and neither contains the other. To find that out, it is enough to know for each word
    the end of the longest kept span that begins there, and the beginning of the longest one that ends there.
    """
    size, widest = valid.shape
    total = valid.sum()

    def more(state: _Search) -> jax.Array:
        return (state.place < total) & (state.kept < number)

    def look(state: _Search) -> _Search:
        place, kept, reach, begin, chosen = state
        start, width = order[place] // widest, order[place] % widest
        end = start + width
        word = jnp.arange(widest)  # the words of the candidate, from its first one on
        reaches = lax.dynamic_slice(reach, (start,), (widest,))
        begins = lax.dynamic_slice(begin, (start,), (widest,))
        crosses = ((word > 0) & (word <= width) & (reaches > end)) | ((word < width) & (begins < start))
        fits = ~crosses.any()
        reach = reach.at[start].max(jnp.where(fits, end, -1))
        begin = begin.at[end].min(jnp.where(fits, start, size))
        return _Search(place + 1, kept + fits, reach, begin, chosen.at[order[place]].set(fits))

    zero = jnp.zeros((), jnp.int32)
    reach, begin = jnp.full(size + widest, -1, jnp.int32), jnp.full(size + widest, size, jnp.int32)
    nothing = jnp.zeros(size * widest, bool)
    return lax.while_loop(more, look, _Search(zero, zero, reach, begin, nothing)).chosen
