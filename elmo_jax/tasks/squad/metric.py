"""Computes the scores of question answering as the official script of SQuAD 1.1 does."""

import re
import string
from collections import Counter
from collections.abc import Sequence

from elmo_jax.tasks.formats.scores import percent

_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII punctuation only
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize(answer: str) -> str:
    """Returns an answer in the form in which answers are compared.

    The order of the steps matters: "an-the" loses its hyphen first, so it becomes one word, which is not an article.
    """
    without_punctuation = answer.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())


def exact_match(predicted: str, answers: Sequence[str]) -> bool:
    """Returns whether a prediction equals one of the gold answers after normalization."""
    return any(normalize(predicted) == normalize(answer) for answer in answers)


def f1(predicted: str, answers: Sequence[str]) -> float:
    """Returns the best F1 of a prediction against any gold answer, between 0 and 1.

    The words of two normalized answers are compared as multisets. Without a common word it is 0, even if both are empty
    and match exactly.

    Raises:
      ValueError: there is no gold answer.
    """
    return max(_f1(normalize(predicted).split(), normalize(answer).split()) for answer in answers)


def metric(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
    """Returns the means of `f1` and `exact_match` over questions, in percent.

    Args:
      gold: the texts of the gold answers to each question, at least one per question.
      predicted: the text of the predicted answer to each question.

    Raises:
      ValueError: the numbers of questions differ, or a question has no gold answer.
    """
    pairs = list(zip(predicted, gold, strict=True))
    return {
        "f1": percent(sum(f1(answer, answers) for answer, answers in pairs), len(pairs)),
        "exact_match": percent(sum(exact_match(answer, answers) for answer, answers in pairs), len(pairs)),
    }


def _f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    common = sum((Counter(predicted) & Counter(gold)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return 2 * precision * recall / (precision + recall)
