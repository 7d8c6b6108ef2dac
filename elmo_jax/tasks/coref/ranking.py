"""Computes the scores of antecedents and the loss over them.

Shapes: k kept spans, K antecedents of each, C spans per chunk, L = K + C - 1 antecedents of a chunk, G features of a
span's vector, F numbers per feature of a pair, H hidden units.

The antecedents of span i are the K kept spans right before it, so those of a chunk of spans are one window. The
elementwise products g_i * g_j enter the first layer as one matrix product of the window with `g_i * kernel` of all
spans of the chunk, so the vectors of pairs are never made. Chunks run one after the other, and the backward pass
computes again all but these products, so memory grows with k * K * H instead of k * K * G.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from elmo_jax.model.dropout import dropped
from elmo_jax.tasks.coref.spans import finish
from elmo_jax.tasks.layers.dense import product
from elmo_jax.types import Tree

CHUNK = 32  # the number of kept spans per chunk, for which g_i * kernel takes 25 MB at the paper's sizes
PRODUCTS = "products"  # the name of what the backward pass does not compute again

# The smallest distances of buckets 1, 2, ...; the buckets are 0, 1, 2, 3, 4, 5-7, 8-15, 16-31, 32-63, 64+.
BUCKETS = (1, 2, 3, 4, 5, 8, 16, 32, 64)


class Pairs(NamedTuple):
    """The kept spans in their order, and the vectors of the features of a pair other than its spans."""

    vectors: jax.Array  # [k, G], the vectors of the spans
    speakers: jax.Array  # int32 [k], the speakers of the first words
    speaker: jax.Array  # [2, F], the vectors of different speakers and of the same speaker
    genre: jax.Array  # [F], the vector of the document's genre
    distance: jax.Array  # [10, F], the vectors of the buckets of distances


def distance_bucket(distance: jax.Array) -> jax.Array:
    """Returns the bucket, 0 to 9, of a distance in kept spans."""
    return (distance[..., None] >= jnp.asarray(BUCKETS)).sum(-1)


def antecedent_scores(params: Tree, spans: Pairs, antecedents: int, rate: float, key: jax.Array | None) -> jax.Array:
    """Returns the scores s_a(i, j), [k, K], of each span's antecedents, the nearest first; arbitrary without one.

    The `params` are those of a `Scorer` over [g_i; g_j; g_i * g_j; features]. The fraction `rate` of the features and
    of the hidden units is dropped, none without a key.
    """
    number, size = spans.vectors.shape
    chunk = min(CHUNK, number)
    chunks = -(-number // chunk)

    def padded(x: jax.Array) -> jax.Array:  # row i holds span i - K, so a chunk's window begins at its number
        return jnp.pad(x, [(antecedents, chunks * chunk - number)] + [(0, 0)] * (x.ndim - 1))

    first = params["hidden_0"]
    of_span, of_antecedent, of_both, of_features = jnp.split(first["kernel"], (size, 2 * size, 3 * size))
    at_span = padded(product(spans.vectors, of_span) + first["bias"])  # [K + k, H]
    at_antecedent = padded(product(spans.vectors, of_antecedent))
    vectors = padded(spans.vectors)
    speakers = padded(spans.speakers)

    def own(x: jax.Array, start: jax.Array) -> jax.Array:
        return lax.dynamic_slice_in_dim(x, start + antecedents, chunk)

    def window(x: jax.Array, start: jax.Array) -> jax.Array:
        return lax.dynamic_slice_in_dim(x, start, antecedents + chunk - 1)

    @partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names(PRODUCTS))
    def run(at: tuple[jax.Array, jax.Array | None]) -> jax.Array:
        start, own_key = at
        keys = (None, None) if own_key is None else tuple(jax.random.split(own_key))
        # The barrier keeps the sums over spans, in the gradient, apart from the product: one kernel for both is slow.
        scaled = lax.optimization_barrier(own(vectors, start)[:, None] * of_both.T)  # [C, H, G]
        both = lax.dot_general(
            scaled, window(vectors, start), (((2,), (1,)), ((), ())), precision=lax.Precision.HIGHEST
        )
        both = checkpoint_name(both, PRODUCTS).swapaxes(1, 2)  # [C, L, H]
        hidden = nearest_first(both + window(at_antecedent, start)) + own(at_span, start)[:, None]  # [C, K, H]
        same = nearest_first(own(speakers, start)[:, None] == window(speakers, start))  # [C, K]
        parts = jnp.broadcast_arrays(spans.speaker[same.astype(jnp.int32)], spans.genre, distances)
        features = dropped(jnp.concatenate(parts, axis=-1), rate, keys[0])  # [C, K, 3 F]
        return finish(params, hidden + product(features, of_features), rate, keys[1])

    distances = spans.distance[distance_bucket(1 + jnp.arange(antecedents))]  # [K, F]
    starts = jnp.arange(chunks) * chunk
    pairs = lax.map(run, (starts, None if key is None else jax.random.split(key, chunks)))
    return pairs.reshape(-1, antecedents)[:number]


def antecedent_indices(number: int, antecedents: int) -> jax.Array:
    """Returns the places [k, K] of antecedents among the kept spans, the nearest first; negative if there is none."""
    return jnp.arange(number)[:, None] - 1 - jnp.arange(antecedents)


def nearest_first(window: jax.Array) -> jax.Array:
    """Maps a chunk's window [C, L, ...] to the antecedents [C, K, ...] of each span, the nearest first.

    Those of span c are at c, ..., c + K - 1 of the window, the farthest first.
    """
    chunk, size = window.shape[:2]
    # Reshaping to rows that are longer by one shifts each row by its number. A gather would have a scatter as gradient.
    flat = window.reshape(chunk * size, *window.shape[2:])
    flat = jnp.pad(flat, [(0, chunk)] + [(0, 0)] * (window.ndim - 2))
    return flat.reshape(chunk, size + 1, *window.shape[2:])[:, : size - chunk + 1][:, ::-1]


def antecedent_loss(scores: jax.Array, clusters: jax.Array, real: jax.Array) -> jax.Array:
    """Returns the sum over spans of -log P(gold antecedents); a span without any has the dummy (Lee et al. 2017).

    The `scores` [k, K + 1] have the dummy first and minus infinity where there is no antecedent; `clusters` int32 [k]
    has the gold cluster of each span, 0 for none, and `real` bool [k] is true for kept spans.
    """
    number, columns = scores.shape
    indices = antecedent_indices(number, columns - 1)
    gold = (clusters[jnp.maximum(indices, 0)] == clusters[:, None]) & (clusters > 0)[:, None] & (indices >= 0)
    gold = jnp.concatenate([~gold.any(-1, keepdims=True), gold], axis=-1)
    chosen = jax.nn.logsumexp(jnp.where(gold, scores, -jnp.inf), axis=-1)
    return jnp.where(real, jax.nn.logsumexp(scores, axis=-1) - chosen, 0.0).sum()
