import pytest

from elmo_jax.tasks.squad.metric import exact_match, f1, metric, metric_with_no_answers, normalize
from tests.tasks.format_cases import oracle

# What the functions of the official script of SQuAD 1.1 return.
CASES = pytest.mark.parametrize("case", oracle("squad"), ids=lambda case: case["prediction"] or "empty")


@CASES
def test_official_script(case):
    assert normalize(case["prediction"]) == case["normalised_prediction"]
    assert [normalize(answer) for answer in case["answers"]] == case["normalised_answers"]
    assert exact_match(case["prediction"], case["answers"]) == case["exact_match"]
    assert f1(case["prediction"], case["answers"]) == case["f1"]


def test_means_over_questions():
    cases = oracle("squad")
    actual = metric([case["answers"] for case in cases], [case["prediction"] for case in cases])
    assert list(actual) == ["f1", "exact_match"]
    assert actual["f1"] == pytest.approx(100 * sum(case["f1"] for case in cases) / len(cases))
    assert actual["exact_match"] == pytest.approx(100 * sum(case["exact_match"] for case in cases) / len(cases))


def test_the_best_answer_counts():
    assert f1("a big dog", ["cat", "dog", "big cat"]) == 2 / 3
    assert exact_match("Dog!", ["cat", "the dog"])


def test_words_are_counted_as_often_as_they_occur():
    assert f1("x x y", ["x x z"]) == 2 / 3
    assert f1("x y", ["x x"]) == 1 / 2


def test_what_cannot_be_scored():
    with pytest.raises(ValueError):
        metric([["a"]], [])
    with pytest.raises(ValueError):
        f1("a", [])


# prediction, gold answers, probability of no answer -> exact match and F1
QUESTIONS = [
    ("", [], 0.05, 1, 1),
    ("Rex", [], 0.2, 0, 0),
    ("the", [], 0.4, 1, 1),  # is empty after normalization
    ("", ["Rex"], 0.7, 0, 0),
    ("a big dog", ["the dog", "big cat"], 0.3, 0, 2 / 3),
    ("Rex!", ["the", "rex"], 0.1, 1, 1),
    ("a", ["the"], 0.6, 1, 1),  # no answer is left, as if there were none
    ("x", ["!"], 0.8, 0, 0),
]


def test_metrics_of_squad_2():
    """Compares with the rules of evaluate-v2.0.py, for which every threshold is tried here."""
    predicted, gold, none, exact, overlap = map(list, zip(*QUESTIONS, strict=True))
    actual = metric_with_no_answers(gold, predicted, none)
    assert list(actual)[:3] == ["f1", "exact", "total"]
    has, lacks = [i for i, answers in enumerate(gold) if answers], [i for i, answers in enumerate(gold) if not answers]
    for name, values in (("exact", exact), ("f1", overlap)):
        for prefix, positions in (("", range(8)), ("HasAns_", has), ("NoAns_", lacks)):
            assert actual[prefix + name] == pytest.approx(100 * sum(values[i] for i in positions) / len(positions))
            assert actual[prefix + "total"] == len(positions)

        def score(threshold, values=values):
            # Without a gold answer, only a prediction that is empty before normalization is right.
            answered = [values[i] if gold[i] else predicted[i] == "" for i in range(8)]
            return 100 * sum(a if p <= threshold else not g for a, g, p in zip(answered, gold, none, strict=True)) / 8

        assert actual[f"best_{name}"] == pytest.approx(max(map(score, (0.0, *none))))
        assert score(actual[f"best_{name}_thresh"]) == pytest.approx(actual[f"best_{name}"])
    assert (actual["best_exact_thresh"], actual["best_f1_thresh"]) == (0.1, 0.1)
    only = metric_with_no_answers([["a b"]], ["b"], [0.5])
    assert list(only) == [
        *("f1", "exact", "total", "HasAns_f1", "HasAns_exact", "HasAns_total"),
        *("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"),
    ]
    with pytest.raises(ValueError):
        metric_with_no_answers([[]], [""], [])
