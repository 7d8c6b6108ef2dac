"""Computes the score of part-of-speech tagging."""

from collections.abc import Sequence

from elmo_jax.tasks.formats.scores import tag_accuracy


def metric(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Scores tags.

    Args:
      gold: the gold tags of each sentence.
      predicted: the predicted tags of each sentence.

    Returns:
      The `accuracy` over all words, in percent.

    Raises:
      ValueError: the numbers of sentences, or of the words of a sentence, differ.
    """
    return {"accuracy": tag_accuracy(gold, predicted)}
