"""Computes the scores of question answering as the official scripts of SQuAD 1.1 and 2.0 do."""

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


def metric_with_no_answers(
    gold: Sequence[Sequence[str]], predicted: Sequence[str], no_answer: Sequence[float]
) -> dict[str, float]:
    """Returns the metrics of SQuAD 2.0 as its evaluate-v2.0.py, in percent but for totals and thresholds.

    These are `f1`, `exact` and `total`; the same with `HasAns_` and `NoAns_` over the questions with and without gold
    answers, if there are any; and `best_exact` and `best_f1`, which are the largest values if no answer is predicted
    where its probability is above a threshold, `best_exact_thresh` and `best_f1_thresh`.

    Args and errors are those of `metric`, but a question may have no gold answers and a predicted text may be empty;
    `no_answer` has the predicted probability that a question has no answer.
    """
    scores: dict[str, list[float]] = {"f1": [], "exact": []}
    for answer, answers, _ in zip(predicted, gold, no_answer, strict=True):
        kept = [text for text in answers if normalize(text)]
        right = exact_match(answer, kept or [""])
        scores["exact"].append(right)
        scores["f1"].append(f1(answer, kept) if kept and normalize(answer) else right)
    parts = {
        "": range(len(gold)),
        "HasAns_": [i for i, answers in enumerate(gold) if answers],
        "NoAns_": [i for i, answers in enumerate(gold) if not answers],
    }
    result: dict[str, float] = {}
    for prefix, indices in parts.items():
        if indices:
            for name, values in scores.items():
                result[f"{prefix}{name}"] = percent(sum(values[i] for i in indices), len(indices))
            result[f"{prefix}total"] = len(indices)
    order = sorted(range(len(gold)), key=lambda i: no_answer[i])  # more and more of them are answered
    for name in ("exact", "f1"):
        best = score = float(len(parts["NoAns_"]))
        threshold = 0.0
        for i in order:
            score += scores[name][i] if gold[i] else -bool(predicted[i])
            if score > best:
                best, threshold = score, no_answer[i]
        result |= {f"best_{name}": percent(best, len(gold)), f"best_{name}_thresh": threshold}
    return result


def _f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    common = sum((Counter(predicted) & Counter(gold)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return 2 * precision * recall / (precision + recall)
