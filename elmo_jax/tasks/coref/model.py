"""Implements the coreference model: spans, their mention scores, and the antecedents of kept spans (Lee et al. 2017).

Shapes: S sentences, T words of the longest sentence, N largest number of words of the document, W words of the widest
span, D input features per word, V features per word from which heads are made, H units of both directions, k largest
number of kept spans, K antecedents per span, C spans per chunk, L = K + C - 1 antecedents of a chunk, G features of a
span's vector, F numbers per feature of a pair.

The antecedents of span i are the K kept spans right before it, so those of a chunk of spans are one window. The
elementwise products g_i * g_j enter the first layer as one matrix product of the window with `g_i * kernel` of all
spans of the chunk, so the vectors of pairs are never made. Chunks run one after the other, and the backward pass
computes again all but these products, so memory grows with k * K * H instead of k * K * G.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from elmo_jax.model.dropout import Dropout, dropped
from elmo_jax.settings import fraction, setting
from elmo_jax.tasks.core.task import Embedded, TaskOutput
from elmo_jax.tasks.coref import spans
from elmo_jax.tasks.coref.reader import GENRES
from elmo_jax.tasks.layers.dense import glorot_uniform, product
from elmo_jax.tasks.layers.recurrent import CoupledBiLSTM
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


def antecedent_scores(params: Tree, pairs: Pairs, antecedents: int, rate: float, key: jax.Array | None) -> jax.Array:
    """Returns the scores s_a(i, j), [k, K], of each span's antecedents, the nearest first; arbitrary without one.

    The `params` are those of a `Scorer` over [g_i; g_j; g_i * g_j; features]. The fraction `rate` of the features and
    of the hidden units is dropped, none without a key.
    """
    number, size = pairs.vectors.shape
    chunk = min(CHUNK, number)
    chunks = -(-number // chunk)

    def padded(x: jax.Array) -> jax.Array:  # row i holds span i - K, so a chunk's window begins at its number
        return jnp.pad(x, [(antecedents, chunks * chunk - number)] + [(0, 0)] * (x.ndim - 1))

    first = params["hidden_0"]
    of_span, of_antecedent, of_both, of_features = jnp.split(first["kernel"], (size, 2 * size, 3 * size))
    at_span = padded(product(pairs.vectors, of_span) + first["bias"])  # [K + k, H]
    at_antecedent = padded(product(pairs.vectors, of_antecedent))
    vectors = padded(pairs.vectors)
    speakers = padded(pairs.speakers)

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
        parts = jnp.broadcast_arrays(pairs.speaker[same.astype(jnp.int32)], pairs.genre, distances)
        features = dropped(jnp.concatenate(parts, axis=-1), rate, keys[0])  # [C, K, 3 F]
        return spans.finish(params, hidden + product(features, of_features), rate, keys[1])

    distances = pairs.distance[distance_bucket(1 + jnp.arange(antecedents))]  # [K, F]
    starts = jnp.arange(chunks) * chunk
    scores = lax.map(run, (starts, None if key is None else jax.random.split(key, chunks)))
    return scores.reshape(-1, antecedents)[:number]


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


@dataclasses.dataclass(frozen=True)
class CorefModel:
    """The settings of the model without its words and ELMo; the defaults are those of Lee et al. (2017)."""

    units: int = setting(200, "The number of units per direction of the LSTM.", least=1)
    hidden: int = setting(150, "The number of units per hidden layer of the two scorers.", least=1)
    depth: int = setting(2, "The number of hidden layers of the two scorers.", least=1)
    feature_dim: int = setting(20, "The dimension of the vectors of widths, distances, speakers and genres.", least=1)
    max_span_width: int = setting(10, "The number of words of the widest span.", least=1)
    top_span_ratio: float = setting(0.4, "The number of spans kept per word of the document.", above=0, most=100)
    antecedents: int = setting(250, "The number of antecedents considered per span.", least=1)
    lexical_dropout: float = fraction(0.5, "The fraction of the input's units, including ELMo's, dropped in training.")
    lstm_dropout: float = fraction(
        0.2, "The fraction of the LSTM's units dropped in training, as they are fed back and at its output."
    )
    dropout: float = fraction(0.2, "The fraction of the scorers' hidden units and features dropped in training.")


class Ranking(NamedTuple):
    """The scores of a document's spans."""

    mentions: jax.Array  # [N, W], the mention scores of the candidates
    candidates: jax.Array  # bool [N, W], true for candidates that exist
    kept: spans.Kept  # the k kept spans
    # [k, K + 1], the scores of the dummy and of the antecedents, the nearest first; minus infinity where there
    # is no antecedent
    antecedents: jax.Array


class SpanRanker(nn.Module):
    """Links the mentions of one document."""

    config: CorefModel

    def __call__(self, sentences: Embedded, arrays: dict[str, jax.Array], *, deterministic: bool = True) -> TaskOutput:
        """Finds the antecedents of a document's spans and compares them with the gold clusters.

        The `sentences` are rows, and the first size of all arrays is 1: `clusters` int32 [1, N, W], the number of the
        gold cluster, from 1 on, of the span with each first word and width, or 0 for none; `speakers` int32 [1, N], the
        speaker of each word; and `genre` int32 [1], an index of `GENRES`. N is at least the number of words.

        Returns:
          The loss, and int32 `starts` and `ends` [1, k], the kept spans with both ends inclusive; `antecedents`
          int32 [1, k], the place of the chosen antecedent among the kept spans, or -1; and `kept` bool [1, k].
        """
        ranking = self.rank(sentences, arrays, deterministic=deterministic)
        kept = ranking.kept
        loss = antecedent_loss(ranking.antecedents, arrays["clusters"][0][kept.starts, kept.widths], kept.real)
        best = ranking.antecedents.argmax(-1)  # 0 is the dummy
        chosen = jnp.where((best > 0) & kept.real, jnp.arange(len(best)) - best, -1)
        predictions = {"starts": kept.starts, "ends": kept.starts + kept.widths, "antecedents": chosen}
        whole = {name: array[None].astype(jnp.int32) for name, array in predictions.items()}
        return TaskOutput(loss, whole | {"kept": kept.real[None]})

    @nn.compact
    def rank(self, sentences: Embedded, arrays: dict[str, jax.Array], *, deterministic: bool = True) -> Ranking:
        config = self.config
        document = spans.document_of(sentences.mask, arrays["clusters"].shape[1])
        words = self._words(sentences, document, deterministic)
        keys = (None, None) if deterministic else jax.random.split(self.make_rng("dropout"))
        scorer = self._scorer("mention", sum(words.sizes))
        mentions = spans.mention_scores(scorer, words, config.dropout, keys[0])  # [N, W]
        valid = spans.candidates(document, config.max_span_width)
        number = document.real.sum()
        kept = spans.keep_spans(lax.stop_gradient(mentions), valid, number, config.top_span_ratio)
        distance, speaker, genres = (
            self.param(name, glorot_uniform, (size, config.feature_dim))
            for name, size in (("distance", len(BUCKETS) + 1), ("speaker", 2), ("genre", len(GENRES)))
        )
        speakers = arrays["speakers"][0][kept.starts]
        pairs = Pairs(spans.span_vectors(words, kept), speakers, speaker, genres[arrays["genre"][0]], distance)
        scorer = self._scorer("antecedent", 3 * (sum(words.sizes) + config.feature_dim))
        antecedents = min(config.antecedents, len(kept.real))
        scores = antecedent_scores(scorer, pairs, antecedents, config.dropout, keys[1])
        indices = antecedent_indices(len(kept.real), antecedents)
        of_spans = mentions[kept.starts, kept.widths]
        scores = scores + of_spans[:, None] + of_spans[jnp.maximum(indices, 0)]  # s_a(i, j) + s_m(i) + s_m(j)
        scores = jnp.where((indices >= 0) & kept.real[:, None], scores, -jnp.inf)
        return Ranking(mentions, valid, kept, jnp.pad(scores, ((0, 0), (1, 0))))  # the dummy has 0

    def _words(self, sentences: Embedded, document: spans.WordIndices, deterministic: bool) -> spans.Words:
        config = self.config
        drop = Dropout(config.lexical_dropout)
        inputs = drop(sentences.vectors, deterministic=deterministic)  # [S, T, D]
        # As in the authors' release of 2018, which has ELMo, the words of heads have a separate dropout mask.
        heads = inputs if sentences.words is None else drop(sentences.words, deterministic=deterministic)
        heads = document.flat(heads)  # [N, V]
        lstm = CoupledBiLSTM(config.units, config.lstm_dropout, name="lstm")
        hidden = lstm(inputs, sentences.mask, deterministic=deterministic)  # [S, T, H]
        hidden = Dropout(config.lstm_dropout)(hidden, deterministic=deterministic)
        hidden = document.flat(hidden)  # [N, H]
        if sentences.output is not None:
            hidden = jnp.concatenate([hidden, document.flat(sentences.output)], axis=-1)
        initial, precision = glorot_uniform, lax.Precision.HIGHEST
        score = nn.Dense(1, kernel_init=initial, bias_init=initial, precision=precision, name="head_score")
        scores = score(hidden)[:, 0]  # [N]
        table = self.param("width", initial, (config.max_span_width, config.feature_dim))
        widths = jnp.broadcast_to(table, (len(scores), *table.shape))  # [N, W, F]
        widths = Dropout(config.dropout)(widths, deterministic=deterministic)
        return spans.Words(hidden, heads, spans.head_weights(scores, config.max_span_width), widths)

    def _scorer(self, name: str, features: int) -> Tree:
        return spans.Scorer(features, self.config.hidden, self.config.depth, name=name)()
