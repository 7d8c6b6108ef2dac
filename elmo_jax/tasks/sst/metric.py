"""Computes the score of sentiment classification."""

from collections.abc import Sequence

from elmo_jax.tasks.formats.scores import accuracy


def metric(gold: Sequence[int], predicted: Sequence[int]) -> dict[str, float]:
    """Scores sentiments.

    Args:
      gold: the gold label of each phrase.
      predicted: the predicted label of each phrase.

    Returns:
      The `accuracy` in percent.

    Raises:
      ValueError: the numbers of labels differ.
    """
    return {"accuracy": accuracy(gold, predicted)}
