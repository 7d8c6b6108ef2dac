"""The score of sentiment classification."""

from collections.abc import Sequence

from elmo_jax.tasks.scores import accuracy


def metric(gold: Sequence[int], predicted: Sequence[int]) -> dict[str, float]:
    """Scores sentiments.

    Args:
      gold: the label of each phrase.
      predicted: the same, as many.

    Returns:
      `accuracy`, in percent.

    Raises:
      ValueError: the two are not equally long.
    """
    return {"accuracy": accuracy(gold, predicted)}
