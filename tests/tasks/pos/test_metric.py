import pytest

from elmo_jax.tasks.pos.metric import metric

pytestmark = pytest.mark.quick


def test_accuracy_is_over_words_of_all_sentences():
    assert metric([["A"], ["A", "B", "C"]], [["B"], ["A", "B", "C"]]) == {"accuracy": 75.0}


def test_lengths_must_agree():
    with pytest.raises(ValueError):
        metric([["A"]], [["A"], ["B"]])
    with pytest.raises(ValueError):
        metric([["A", "B"]], [["A"]])
