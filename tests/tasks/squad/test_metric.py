import pytest

from elmo_jax.tasks.squad.metric import exact_match, f1, metric, normalize
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
    found = metric([case["answers"] for case in cases], [case["prediction"] for case in cases])
    assert list(found) == ["f1", "exact_match"]
    assert found["f1"] == pytest.approx(100 * sum(case["f1"] for case in cases) / len(cases))
    assert found["exact_match"] == pytest.approx(100 * sum(case["exact_match"] for case in cases) / len(cases))


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
