"""Implements the coreference model: spans, their mention scores, and the antecedents of kept spans (Lee et al. 2017).

Shapes: S sentences, T words of the longest sentence, N largest number of words of the document, W words of the widest
span, D input features per word, V features per word from which heads are made, H units of both directions, k largest
number of kept spans, K antecedents per span.
"""

import dataclasses
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.model.dropout import Dropout
from elmo_jax.settings import fraction, setting
from elmo_jax.tasks.core.task import Embedded, TaskOutput
from elmo_jax.tasks.coref.ranking import BUCKETS, Pairs, antecedent_indices, antecedent_loss, antecedent_scores
from elmo_jax.tasks.coref.reader import GENRES
from elmo_jax.tasks.coref.spans import (
    Kept,
    Scorer,
    WordIndices,
    Words,
    candidates,
    document_of,
    head_weights,
    keep_spans,
    mention_scores,
    span_vectors,
)
from elmo_jax.tasks.layers.dense import glorot_uniform
from elmo_jax.tasks.layers.recurrent import CoupledBiLSTM
from elmo_jax.types import Tree


@dataclasses.dataclass(frozen=True)
class CorefModel:
    """The settings of the model without its words and ELMo; the defaults are those of Lee et al. (2017).

    As in the authors' release of 2018, which has ELMo, the words of heads have a separate dropout mask.
    """

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
    kept: Kept  # the k kept spans
    # [k, K + 1], the scores of the dummy and of the antecedents, the nearest first; minus infinity where there
    # is no antecedent
    antecedents: jax.Array


class SpanRanker(nn.Module):
    """Links the mentions of one document."""

    config: CorefModel

    def __call__(self, sentences: Embedded, arrays: dict[str, jax.Array], *, deterministic: bool = True) -> TaskOutput:
        """Finds the antecedents of a document's spans and compares them with the gold clusters.

        Args:
          sentences: the document with one sentence per row; `vectors` and `words` without dropout. With `output`, its
            ELMo is joined after the LSTM.
          arrays: the arrays of one document, so their first size is 1. `clusters` int32 [1, N, W], the number of the
            gold cluster, from 1 on, of the span with each first word and width, or 0 for none; `speakers` int32 [1, N],
            the speaker of each word; `genre` int32 [1], an index of `GENRES`. N is at least the number of words.

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
        """Scores candidates, keeps the best, and scores their antecedents; see `__call__`."""
        config = self.config
        document = document_of(sentences.mask, arrays["clusters"].shape[1])
        words = self._words(sentences, document, deterministic)
        keys = (None, None) if deterministic else jax.random.split(self.make_rng("dropout"))
        mentions = mention_scores(self._scorer("mention", sum(words.sizes)), words, config.dropout, keys[0])  # [N, W]
        valid = candidates(document, config.max_span_width)
        number = document.real.sum()
        kept = keep_spans(lax.stop_gradient(mentions), valid, number, config.top_span_ratio)
        distance, speaker, genres = (
            self.param(name, glorot_uniform, (size, config.feature_dim))
            for name, size in (("distance", len(BUCKETS) + 1), ("speaker", 2), ("genre", len(GENRES)))
        )
        speakers = arrays["speakers"][0][kept.starts]
        pairs = Pairs(span_vectors(words, kept), speakers, speaker, genres[arrays["genre"][0]], distance)
        scorer = self._scorer("antecedent", 3 * (sum(words.sizes) + config.feature_dim))
        antecedents = min(config.antecedents, len(kept.real))
        scores = antecedent_scores(scorer, pairs, antecedents, config.dropout, keys[1])
        indices = antecedent_indices(len(kept.real), antecedents)
        of_spans = mentions[kept.starts, kept.widths]
        scores = scores + of_spans[:, None] + of_spans[jnp.maximum(indices, 0)]  # s_a(i, j) + s_m(i) + s_m(j)
        scores = jnp.where((indices >= 0) & kept.real[:, None], scores, -jnp.inf)
        return Ranking(mentions, valid, kept, jnp.pad(scores, ((0, 0), (1, 0))))  # the dummy has 0

    def _words(self, sentences: Embedded, document: WordIndices, deterministic: bool) -> Words:
        """Returns the document's words after the LSTM, and the vectors and weights of heads and widths."""
        config = self.config
        drop = Dropout(config.lexical_dropout)
        inputs = drop(sentences.vectors, deterministic=deterministic)  # [S, T, D]
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
        return Words(hidden, heads, head_weights(scores, config.max_span_width), widths)

    def _scorer(self, name: str, features: int) -> Tree:
        return Scorer(features, self.config.hidden, self.config.depth, name=name)()
