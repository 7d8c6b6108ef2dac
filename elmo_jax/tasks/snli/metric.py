"""Computes the score of textual entailment."""

from collections.abc import Sequence

from elmo_jax.tasks.formats.scores import accuracy


def metric(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
    """Scores labels.

    Args:
      gold: the gold label of each pair.
      predicted: the predicted label of each pair.

    Returns:
      The `accuracy` in percent.

    Raises:
      ValueError: the numbers of labels differ.
    """
    return {"accuracy": accuracy(gold, predicted)}
