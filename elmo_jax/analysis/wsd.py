"""Word sense disambiguation by the nearest class mean (paper, section 5.3, Table 5).

Shapes: I instances, K senses that have a mean, L LSTM layers, P projection of the biLM, S numbers stored per word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from elmo_jax.analysis.semcor import Sentence
from elmo_jax.analysis.vectors import Vectors
from elmo_jax.analysis.wordnet import SenseIndex
from elmo_jax.tasks.elmo_vectors import unpacked

RESAMPLES = 10_000  # of the bootstrap
CONFIDENCE = 95.0  # percent of the resamples that an interval covers

Predictions = list[str | None]  # a sense key per instance; None where WordNet has no sense of the lemma


class ClassMeans(NamedTuple):
    """A vector per sense.

    Attributes:
      rows: the row of each sense key.
      directions: [L+1, K, 2P] float32, the mean vectors divided by their lengths.
    """

    rows: dict[str, int]
    directions: np.ndarray


class Score(NamedTuple):
    """A mean over instances, in percent, with its bootstrap interval."""

    value: float
    low: float
    high: float
    instances: int


def instance_vectors(vectors: Vectors, sentences: Sequence[Sentence]) -> np.ndarray:
    """[I, S] float32, the vector of each instance; of an expression of several words it is the mean of theirs."""
    found = []
    for sentence in sentences:
        if sentence.instances:
            stored = vectors.stored(sentence.words).astype(np.float32)
            found += [stored[instance.start : instance.end].mean(axis=0) for instance in sentence.instances]
    return np.stack(found)


def class_means(vectors: Vectors, sentences: Sequence[Sentence]) -> ClassMeans:
    """The mean vector of each sense over its occurrences; an instance with several keys counts for each.

    Args:
      vectors: the layers of these sentences.
      sentences: of the training corpus, which has at least one instance.
    """
    rows: dict[str, int] = {}
    for sentence in sentences:
        for instance in sentence.instances:
            for key in instance.keys:
                rows.setdefault(key, len(rows))
    sums: np.ndarray | None = None
    for sentence in sentences:
        if not sentence.instances:
            continue
        found = instance_vectors(vectors, [sentence])
        if sums is None:
            sums = np.zeros((len(rows), found.shape[1]), np.float32)
        for instance, vector in zip(sentence.instances, found, strict=True):
            for key in instance.keys:
                sums[rows[key]] += vector
    assert sums is not None
    layers = by_layer(sums, vectors.projection)  # a sum has the direction of its mean
    lengths = np.linalg.norm(layers, axis=-1, keepdims=True)
    return ClassMeans(rows, layers / np.where(lengths > 0, lengths, 1))


def by_layer(stored: np.ndarray, projection: int) -> np.ndarray:
    """[n, S] as stored -> [L+1, n, 2P] float32."""
    return np.asarray(jax.jit(unpacked, static_argnums=1)(stored[None], projection)[0])


def predict(
    index: SenseIndex, means: ClassMeans, vectors: Vectors, sentences: Sequence[Sentence]
) -> tuple[list[Predictions], int]:
    """Predicts a sense for each instance with each layer.

    It is the one whose mean is nearest by cosine among the senses of the instance's lemma and part of speech, or
    WordNet's first sense where none of those has a mean.

    Args:
      index: the senses of each lemma.
      means: of the training corpus.
      vectors: the layers of these sentences.
      sentences: of the test set.

    Returns:
      The predictions of each of the L + 1 layers, and the number of instances that were given the first sense because
      no sense of theirs has a mean.
    """
    instances = [instance for sentence in sentences for instance in sentence.instances]
    layers = by_layer(instance_vectors(vectors, sentences), vectors.projection)  # [L+1, I, 2P]
    found: list[Predictions] = [[] for _ in layers]
    unseen = 0
    for number, instance in enumerate(instances):
        candidates = [key for key in index.senses(instance.lemma, instance.part) if key in means.rows]
        if not candidates:
            first = index.first(instance.lemma, instance.part)
            unseen += 1
            for predictions in found:
                predictions.append(first)
            continue
        directions = means.directions[:, [means.rows[key] for key in candidates]]  # [L+1, candidates, 2P]
        # the length of the instance's own vector changes no comparison
        cosines = np.einsum("lkf,lf->lk", directions, layers[:, number])
        for predictions, best in zip(found, cosines.argmax(axis=1), strict=True):
            predictions.append(candidates[best])
    return found, unseen


def first_senses(index: SenseIndex, sentences: Sequence[Sentence]) -> Predictions:
    """WordNet's first sense for each instance: the baseline."""
    return [index.first(instance.lemma, instance.part) for sentence in sentences for instance in sentence.instances]


def right(predictions: Predictions, sentences: Sequence[Sentence]) -> np.ndarray:
    """[I] bool, whether each prediction is among the keys of its instance.

    Every instance has a prediction, so precision, recall and F1 are all the mean of this.
    """
    instances = [instance for sentence in sentences for instance in sentence.instances]
    return np.array([key in i.keys for key, i in zip(predictions, instances, strict=True)], bool)


def score(values: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> Score:
    """The mean of some values, in percent, with the interval that a bootstrap over them gives.

    Args:
      values: [I], one per test instance: what `right` returns, or the difference of two of these for two systems on the
        same instances.
      resamples: how many times I instances are drawn with replacement.
      seed: of the draws.
    """
    distinct, counts = np.unique(values.astype(np.float64), return_counts=True)
    # to draw instances one by one is to draw how often each value occurs
    draws = np.random.default_rng(seed).multinomial(len(values), counts / len(values), resamples)
    means = 100 * (draws @ distinct) / len(values)
    outside = (100 - CONFIDENCE) / 2
    low, high = np.percentile(means, [outside, 100 - outside])
    return Score(100 * float(np.mean(values, dtype=np.float64)), float(low), float(high), len(values))
