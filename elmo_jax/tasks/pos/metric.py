"""The score of part-of-speech tagging."""

from collections.abc import Sequence

from elmo_jax.tasks.scores import tag_accuracy


def metric(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Scores tags.

    Args:
      gold: the tags of each sentence.
      predicted: the same, of the same lengths.

    Returns:
      `accuracy`, over all words, in percent.

    Raises:
      ValueError: the number of sentences, or of the words of a sentence, is not the same.
    """
    return {"accuracy": tag_accuracy(gold, predicted)}
