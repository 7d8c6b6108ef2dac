"""The scores of named-entity recognition as conlleval computes them, the script of the CoNLL-2000 to 2003 tasks."""

from collections.abc import Sequence

from elmo_jax.tasks.formats.scores import LabelScores, score_labels, tag_accuracy
from elmo_jax.tasks.formats.tags import spans


def evaluate(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> LabelScores:
    """Counts the spans whose type and both ends are right.

    The tags are in BIO or IOB1; `tags.bioul_to_bio` converts BIOUL to BIO. A predicted I that opens a span counts as B.

    Raises:
      ValueError: the number of sentences differs.
      TagError: a tag is none of O, B-x and I-x.
    """
    return score_labels((set(spans(a)), set(spans(b))) for a, b in zip(gold, predicted, strict=True))


def metric(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Returns `f1`, `precision`, `recall` of all types, `accuracy`, and `f1_x` of each type x, in percent."""
    return evaluate(gold, predicted).metrics(accuracy=tag_accuracy(gold, predicted))
