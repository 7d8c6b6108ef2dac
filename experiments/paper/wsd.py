"""Disambiguates word senses by the nearest class mean (paper, section 5.3, Table 5).

Shapes: I instances, K senses that have a mean, L LSTM layers, P dimension of the biLM's projection, S stored numbers
per word.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from results import Vectors
from senses import SenseIndex, Sentence

RESAMPLES = 10_000  # the number of resamples of the bootstrap
CONFIDENCE = 95.0  # the percentage of the resamples that an interval covers

Predictions = list[str | None]  # a sense key per instance; None if WordNet does not have the lemma


class ClassMeans(NamedTuple):
    rows: dict[str, int]  # the row of each sense key
    directions: np.ndarray  # float32 [L+1, K, 2P], the mean vectors divided by their lengths


class Score(NamedTuple):
    """A mean over instances, in percent, with its bootstrap interval."""

    value: float
    low: float
    high: float
    instances: int


def instance_vectors(vectors: Vectors, sentences: Sequence[Sentence]) -> np.ndarray:
    """Returns the vector of each instance, float32 [I, S]; that of an expression is the mean over its words."""
    means = []
    for sentence in sentences:
        if sentence.instances:
            stored = vectors.stored[sentence.words].astype(np.float32)
            means += [stored[instance.start : instance.end].mean(axis=0) for instance in sentence.instances]
    return np.stack(means)


def class_means(vectors: Vectors, sentences: Sequence[Sentence]) -> ClassMeans:
    """Returns the mean vector of each sense over its occurrences; an instance with several keys counts for each."""
    keys = [key for sentence in sentences for instance in sentence.instances for key in instance.keys]
    rows = {key: row for row, key in enumerate(dict.fromkeys(keys))}
    sums = np.zeros((len(rows), vectors.stored[sentences[0].words].shape[1]), np.float32)
    for sentence in (sentence for sentence in sentences if sentence.instances):
        for instance, vector in zip(sentence.instances, instance_vectors(vectors, [sentence]), strict=True):
            for key in instance.keys:
                sums[rows[key]] += vector
    layers = vectors.layers(sums)  # a sum has the direction of its mean
    lengths = np.linalg.norm(layers, axis=-1, keepdims=True)
    return ClassMeans(rows, layers / np.where(lengths > 0, lengths, 1))


def predict(
    index: SenseIndex, means: ClassMeans, vectors: Vectors, sentences: Sequence[Sentence]
) -> tuple[list[Predictions], int]:
    """Predicts a sense for each instance with each of the L + 1 layers.

    The predicted sense is that with the nearest mean by cosine among the senses of the instance's lemma and part of
    speech, or WordNet's first sense if none of these has a mean; the number of such instances is returned too.
    """
    instances = [instance for sentence in sentences for instance in sentence.instances]
    layers = vectors.layers(instance_vectors(vectors, sentences))  # [L+1, I, 2P]
    by_layer: list[Predictions] = [[] for _ in layers]
    unseen = 0
    for number, instance in enumerate(instances):
        candidates = [key for key in index.senses(instance.lemma, instance.part) if key in means.rows]
        if not candidates:
            first = index.first(instance.lemma, instance.part)
            unseen += 1
            for predictions in by_layer:
                predictions.append(first)
            continue
        directions = means.directions[:, [means.rows[key] for key in candidates]]  # [L+1, candidates, 2P]
        # The length of the instance's own vector does not affect the comparison.
        cosines = np.einsum("lkf,lf->lk", directions, layers[:, number])
        for predictions, best in zip(by_layer, cosines.argmax(axis=1), strict=True):
            predictions.append(candidates[best])
    return by_layer, unseen


def first_senses(index: SenseIndex, sentences: Sequence[Sentence]) -> Predictions:
    """Predicts WordNet's first sense for each instance, which is the baseline."""
    return [index.first(instance.lemma, instance.part) for sentence in sentences for instance in sentence.instances]


def right(predictions: Predictions, sentences: Sequence[Sentence]) -> np.ndarray:
    """Returns whether each prediction is right, bool [I]; the mean is precision, recall and F1, as none is missing."""
    instances = [instance for sentence in sentences for instance in sentence.instances]
    return np.array([key in i.keys for key, i in zip(predictions, instances, strict=True)], bool)


def score(values: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> Score:
    """Returns the mean of `right`, or of the differences between two systems, [I], with its bootstrap interval."""
    distinct, counts = np.unique(values.astype(np.float64), return_counts=True)
    # Drawing instances one by one is equivalent to drawing the number of times that each value occurs.
    draws = np.random.default_rng(seed).multinomial(len(values), counts / len(values), resamples)
    means = 100 * (draws @ distinct) / len(values)
    outside = (100 - CONFIDENCE) / 2
    low, high = np.percentile(means, [outside, 100 - outside])
    return Score(100 * float(np.mean(values, dtype=np.float64)), float(low), float(high), len(values))
