"""Scores of antecedents, the loss over them, and the choice among them.

Shapes: k kept spans, K antecedents of each, C spans of a chunk, L = K + C - 1 spans that are antecedents in a chunk,
G features of a span's vector, F of each of the pair's features, H hidden units.

The antecedents of span i are the K kept spans right before it, so those of a chunk of spans are one window. The
product of the pairs' elementwise products g_i * g_j with their rows of the kernel is taken as one matrix product of
the window with `g_i * kernel` of all spans of the chunk: no vector of a pair is ever made. Chunks run one after the
other and are computed again in the backward pass, so that memory does not grow with k * K * G.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.tasks.coref.scorer import dropped, finish, product, split_rows
from elmo_jax.types import Tree

CHUNK = 32  # kept spans; g_i * kernel of a chunk is then 25 MB at the paper's sizes

# the smallest distances of buckets 1, 2, ... (original): 0, 1, 2, 3, 4, 5-7, 8-15, 16-31, 32-63, 64+
BUCKETS = (1, 2, 3, 4, 5, 8, 16, 32, 64)


class Spans(NamedTuple):
    """The kept spans in their order.

    Attributes:
      vectors: [k, G].
      scores: [k], of the mentions.
      speakers: int32 [k], of the first words; None for a model without speakers.
    """

    vectors: jax.Array
    scores: jax.Array
    speakers: jax.Array | None


class PairFeatures(NamedTuple):
    """The vectors of what is known of a pair beside its spans.

    Attributes:
      speaker: [2, F], of another and of the same speaker; None for a model without speakers.
      genre: [F], of the document's genre; None for a model without genres.
      distance: [10, F], of the buckets of distances.
    """

    speaker: jax.Array | None
    genre: jax.Array | None
    distance: jax.Array


class Rates(NamedTuple):
    """Shares of numbers that are dropped in training.

    Attributes:
      features: of the vectors of what is known of a pair.
      hidden: of the hidden units.
    """

    features: float
    hidden: float


def distance_bucket(distance: jax.Array) -> jax.Array:
    """The bucket, 0 to 9, of a distance in kept spans."""
    return (distance[..., None] >= jnp.asarray(BUCKETS)).sum(-1)


def antecedent_scores(
    params: Tree, features: PairFeatures, spans: Spans, antecedents: int, rates: Rates, key: jax.Array | None
) -> jax.Array:
    """The scores s_m(i) + s_m(j) + s_a(i, j) of the nearest antecedents, [k, K], the nearest first.

    Where there is no antecedent the number is of no meaning.

    Args:
      params: of a `Scorer` over [g_i; g_j; g_i * g_j; features].
      features: of pairs.
      spans: the kept ones.
      antecedents: K.
      rates: of dropout.
      key: of the dropout; None for no dropout.
    """
    number, size = spans.vectors.shape
    chunk = min(CHUNK, number)
    chunks = -(-number // chunk)

    def padded(x: jax.Array) -> jax.Array:  # row i holds span i - K, so that a chunk's window begins at its own number
        return jnp.pad(x, [(antecedents, chunks * chunk - number)] + [(0, 0)] * (x.ndim - 1))

    first = params["hidden_0"]
    rest = first["kernel"].shape[0] - 3 * size
    of_span, of_antecedent, of_both, of_features = split_rows(first["kernel"], (size, size, size, rest))
    at_span = padded(product(spans.vectors, of_span) + first["bias"])  # [K + k, H]
    at_antecedent = padded(product(spans.vectors, of_antecedent))
    vectors = padded(spans.vectors)
    speakers = None if spans.speakers is None else padded(spans.speakers)

    def own(x: jax.Array, start: jax.Array) -> jax.Array:
        return lax.dynamic_slice_in_dim(x, start + antecedents, chunk)

    def window(x: jax.Array, start: jax.Array) -> jax.Array:
        return lax.dynamic_slice_in_dim(x, start, antecedents + chunk - 1)

    @jax.checkpoint
    def run(at: tuple[jax.Array, jax.Array | None]) -> jax.Array:
        start, own_key = at
        keys = (None, None) if own_key is None else tuple(jax.random.split(own_key))
        scaled = own(vectors, start)[:, None] * of_both.T  # [C, H, G]
        both = lax.dot_general(
            scaled, window(vectors, start), (((2,), (1,)), ((), ())), precision=lax.Precision.HIGHEST
        ).swapaxes(1, 2)  # [C, L, H]
        hidden = nearest_first(both + window(at_antecedent, start)) + own(at_span, start)[:, None]  # [C, K, H]
        same = None
        if speakers is not None:
            same = nearest_first(own(speakers, start)[:, None] == window(speakers, start))  # [C, K]
        known = dropped(_pair_vectors(features, same, chunk, antecedents), rates.features, keys[0])
        return finish(params, hidden + product(known, of_features), rates.hidden, keys[1])

    starts = jnp.arange(chunks) * chunk
    pairs = lax.map(run, (starts, None if key is None else jax.random.split(key, chunks)))
    pairs = pairs.reshape(-1, antecedents)[:number]  # [k, K]
    places = antecedent_places(number, antecedents)
    return pairs + spans.scores[:, None] + spans.scores[jnp.maximum(places, 0)]


def antecedent_places(number: int, antecedents: int) -> jax.Array:
    """The number of each antecedent among the kept spans, int32 [k, K], the nearest first; negative where none is."""
    return jnp.arange(number)[:, None] - 1 - jnp.arange(antecedents)


def nearest_first(window: jax.Array) -> jax.Array:
    """The antecedents of each span of a chunk out of the chunk's window.

    Args:
      window: [C, L, ...], where span c has its antecedents at c, ..., c + K - 1, the farthest first.

    Returns:
      [C, K, ...].
    """
    chunk, size = window.shape[:2]
    # rows that are longer by one shift each row by its number; no gather, whose gradient would be a scatter
    flat = window.reshape(chunk * size, *window.shape[2:])
    flat = jnp.pad(flat, [(0, chunk)] + [(0, 0)] * (window.ndim - 2))
    return flat.reshape(chunk, size + 1, *window.shape[2:])[:, : size - chunk + 1][:, ::-1]


def _pair_vectors(features: PairFeatures, same: jax.Array | None, chunk: int, antecedents: int) -> jax.Array:
    """What is known of the pairs of a chunk, [C, K, F or 3 F]: speaker, genre, distance."""
    distance = features.distance[distance_bucket(1 + jnp.arange(antecedents))]  # [K, F]
    parts = [] if same is None or features.speaker is None else [features.speaker[same.astype(jnp.int32)]]
    shape = (chunk, antecedents, distance.shape[-1])
    parts += [jnp.broadcast_to(part, shape) for part in (features.genre, distance) if part is not None]
    return jnp.concatenate(parts, axis=-1)


def antecedent_loss(scores: jax.Array, clusters: jax.Array, real: jax.Array) -> jax.Array:
    """The sum over spans of -log P(gold antecedents), where a span without one has the dummy (paper: Lee et al. 2017).

    Args:
      scores: [k, K + 1], the dummy first; minus infinity where there is no antecedent.
      clusters: int32 [k], the gold cluster of each span, 0 for none.
      real: bool [k], true on kept spans.
    """
    number, columns = scores.shape
    places = antecedent_places(number, columns - 1)
    gold = (clusters[jnp.maximum(places, 0)] == clusters[:, None]) & (clusters > 0)[:, None] & (places >= 0)
    gold = jnp.concatenate([~gold.any(-1, keepdims=True), gold], axis=-1)
    chosen = jax.nn.logsumexp(jnp.where(gold, scores, -jnp.inf), axis=-1)
    return jnp.where(real, jax.nn.logsumexp(scores, axis=-1) - chosen, 0.0).sum()
