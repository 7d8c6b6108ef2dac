"""Computes MUC, B-cubed, CEAFe and their mean as the reference coreference scorer 8.01 does.

All clusters count, including those of one mention. If neither side has such clusters, other scorers give the same
result.
"""

from collections.abc import Sequence
from typing import NamedTuple

from elmo_jax.tasks.formats.scores import percent

Mention = tuple[int, int]
Clusters = Sequence[Sequence[Mention]]


class Fractions(NamedTuple):
    """A recall and a precision as sums over documents, to be divided at the end."""

    recall_sum: float = 0  # the numerator of the recall
    gold: int = 0  # its denominator
    precision_sum: float = 0  # the numerator of the precision
    predicted: int = 0  # its denominator

    @property
    def recall(self) -> float:
        return self.recall_sum / self.gold if self.gold else 0.0

    @property
    def precision(self) -> float:
        return self.precision_sum / self.predicted if self.predicted else 0.0

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


class Scores(NamedTuple):
    """The three scores, each over all documents."""

    muc: Fractions = Fractions()
    b_cubed: Fractions = Fractions()
    ceafe: Fractions = Fractions()

    @property
    def average_f1(self) -> float:
        return (self.muc.f1 + self.b_cubed.f1 + self.ceafe.f1) / 3


def evaluate(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> Scores:
    """Scores documents by MUC, B-cubed (Bagga and Baldwin 1998) and CEAFe.

    Raises:
      ValueError: a mention is in two clusters of a document.
    """
    documents = [
        ((*_links_kept(a, b), *_links_kept(b, a)), (*_overlaps(a, b), *_overlaps(b, a)), ceafe(a, b))
        for a, b in zip(gold, predicted, strict=True)
    ]
    return Scores(*(Fractions(*map(sum, zip(*each, strict=True))) for each in zip(*documents, strict=True)))


def metric(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> dict[str, float]:
    """Returns in percent `average_f1`, and `f1`, `precision` and `recall` of each score, such as `muc_f1`."""
    scores = evaluate(gold, predicted)
    metrics = {"average_f1": percent(scores.average_f1, 1)}
    for name, score in scores._asdict().items():
        metrics |= {f"{name}_{part}": percent(getattr(score, part), 1) for part in ("f1", "precision", "recall")}
    return metrics


def ceafe(gold: Clusters, predicted: Clusters) -> Fractions:
    """Returns CEAFe of one document: the best one-to-one alignment of clusters (Luo, 2005).

    The similarity of two clusters is φ4, twice the number of common mentions divided by the sum of their sizes.
    """
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    index = _cluster_of_mention(predicted)
    common = np.zeros((len(gold), len(predicted)))
    for i, mention in ((i, mention) for i, cluster in enumerate(gold) for mention in cluster if mention in index):
        common[i, index[mention]] += 1
    sizes = np.add.outer([len(cluster) for cluster in gold], [len(cluster) for cluster in predicted])
    similarities = 2 * common / sizes
    rows, columns = linear_sum_assignment(-similarities)
    total = float(similarities[rows, columns].sum())
    return Fractions(total, len(gold), total, len(predicted))


def _links_kept(clusters: Clusters, others: Clusters) -> tuple[int, int]:
    """Returns the numbers of links that clusters keep when the others divide them and of all (Vilain et al. 1995)."""
    index = _cluster_of_mention(others)
    known = [[index[mention] for mention in cluster if mention in index] for cluster in clusters]
    kept = sum(len(numbers) - len(set(numbers)) for numbers in known)  # a mention that the others lack has no link
    return kept, sum(len(cluster) - 1 for cluster in clusters)


def _overlaps(clusters: Clusters, others: Clusters) -> tuple[float, int]:
    """Returns the sum over mentions of the share of a cluster that the other one has, and their number."""
    index = _cluster_of_mention(others)
    total = 0.0
    for cluster in clusters:
        known = [index[mention] for mention in cluster if mention in index]
        total += sum(map(known.count, known)) / len(cluster)
    return total, sum(map(len, clusters))


def _cluster_of_mention(clusters: Clusters) -> dict[Mention, int]:
    index = {mention: i for i, cluster in enumerate(clusters) for mention in cluster}
    if len(index) != sum(map(len, clusters)):
        raise ValueError("a mention is in two clusters, or twice in one")
    return index
