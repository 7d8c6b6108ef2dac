import pytest

from elmo_jax.tasks.squad.task import normalize, scores
from tests.tasks.format_cases import oracle

# What the functions of the official script of SQuAD 1.1 return.
CASES = pytest.mark.parametrize("case", oracle("squad"), ids=lambda case: case["prediction"] or "empty")


@CASES
def test_official_script(case):
    assert normalize(case["prediction"]) == case["normalised_prediction"]
    assert [normalize(answer) for answer in case["answers"]] == case["normalised_answers"]
    actual = scores([case["answers"]], [case["prediction"]])
    assert actual == {"f1": 100 * case["f1"], "exact_match": 100 * case["exact_match"]}


def test_means_over_questions():
    cases = oracle("squad")
    actual = scores([case["answers"] for case in cases], [case["prediction"] for case in cases])
    assert list(actual) == ["f1", "exact_match"]
    assert actual["f1"] == pytest.approx(100 * sum(case["f1"] for case in cases) / len(cases))
    assert actual["exact_match"] == pytest.approx(100 * sum(case["exact_match"] for case in cases) / len(cases))


def score(predicted, answers):
    return scores([answers], [predicted])


def test_the_best_answer_counts():
    assert score("a big dog", ["cat", "dog", "big cat"]) == pytest.approx({"f1": 200 / 3, "exact_match": 0})
    assert score("Dog!", ["cat", "the dog"]) == {"f1": 100, "exact_match": 100}


def test_words_are_counted_as_often_as_they_occur():
    assert score("x x y", ["x x z"])["f1"] == pytest.approx(200 / 3)
    assert score("x y", ["x x"])["f1"] == 50


def test_what_cannot_be_scored():
    with pytest.raises(ValueError):
        scores([["a"]], [])
    with pytest.raises(ValueError):
        score("a", [])
