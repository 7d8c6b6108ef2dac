"""Computes the scores of named-entity recognition as conlleval does, the script of the CoNLL-2000 to 2003 tasks."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

from elmo_jax.tasks.formats.scores import Counts, percent
from elmo_jax.tasks.formats.tags import spans


@dataclasses.dataclass(frozen=True)
class Scores:
    """The counts of conlleval.

    Attributes:
      tokens: the number of words.
      right_tokens: the number of words with the right tag.
      overall: the counts of spans of all types.
      types: the counts of spans of each type that is gold or predicted, in alphabetical order.
    """

    tokens: int
    right_tokens: int
    overall: Counts
    types: dict[str, Counts]

    @property
    def accuracy(self) -> float:
        """The share of words with the right tag, in percent."""
        return percent(self.right_tokens, self.tokens)


def evaluate(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Scores:
    """Counts the spans whose type and both ends are right.

    Args:
      gold: the gold tags of each sentence in BIO or IOB1; `tags.bioul_to_bio` converts BIOUL to BIO.
      predicted: the predicted tags of each sentence. An I that opens a span counts as B.

    Raises:
      ValueError: the numbers of sentences, or of the words of a sentence, differ.
      TagError: a tag is none of O, B-x and I-x.
    """
    tokens = right = 0
    of_both: dict[str, Counter[str]] = {"correct": Counter(), "predicted": Counter(), "gold": Counter()}
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        tokens += len(gold_tags)
        right += sum(a == b for a, b in zip(gold_tags, predicted_tags, strict=True))
        gold_spans, predicted_spans = set(spans(gold_tags)), set(spans(predicted_tags))
        of_both["gold"].update(span.label for span in gold_spans)
        of_both["predicted"].update(span.label for span in predicted_spans)
        of_both["correct"].update(span.label for span in gold_spans & predicted_spans)
    labels = sorted(of_both["gold"].keys() | of_both["predicted"].keys())
    types = {label: Counts(**{name: counter[label] for name, counter in of_both.items()}) for label in labels}
    return Scores(tokens, right, sum(types.values(), Counts()), types)


def metric(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Scores tags; see `evaluate`.

    Returns:
      The metrics in percent: `f1`, `precision` and `recall` over all types, `accuracy` of the tags, and `f1_x` of each
        type x.
    """
    scores = evaluate(gold, predicted)
    return {
        **scores.overall.metrics(),
        "accuracy": scores.accuracy,
        **{f"f1_{label}": counts.f1 for label, counts in scores.types.items()},
    }


def report(scores: Scores) -> list[str]:
    """Returns the lines that conlleval prints."""
    overall = scores.overall
    return [
        f"processed {scores.tokens} tokens with {overall.gold} phrases; "
        f"found: {overall.predicted} phrases; correct: {overall.correct}.",
        f"accuracy: {scores.accuracy:6.2f}%; {_precision_recall_f1(overall)}",
        *(f"{label:>17}: {_precision_recall_f1(counts)}  {counts.predicted}" for label, counts in scores.types.items()),
    ]


def _precision_recall_f1(counts: Counts) -> str:
    return f"precision: {counts.precision:6.2f}%; recall: {counts.recall:6.2f}%; FB1: {counts.f1:6.2f}"
