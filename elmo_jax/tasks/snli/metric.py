"""The score of textual entailment."""

from collections.abc import Sequence

from elmo_jax.tasks.scores import accuracy


def metric(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
    """Scores labels.

    Args:
      gold: the label of each pair.
      predicted: the same, as many.

    Returns:
      `accuracy`, in percent.

    Raises:
      ValueError: the two are not equally long.
    """
    return {"accuracy": accuracy(gold, predicted)}
