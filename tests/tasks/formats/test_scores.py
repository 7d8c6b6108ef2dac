import pytest

from elmo_jax.tasks.formats.scores import Counts, accuracy, tag_accuracy

pytestmark = pytest.mark.quick


def test_counts():
    counts = Counts(correct=2, predicted=3, gold=5) + Counts(correct=1, predicted=1, gold=1)
    assert counts == Counts(3, 4, 6)
    assert (counts.precision, counts.recall) == (75.0, 50.0)
    assert counts.metrics() == {"f1": pytest.approx(60), "precision": 75.0, "recall": 50.0}
    assert list(counts.metrics())[0] == "f1"
    assert Counts().metrics() == {"f1": 0.0, "precision": 0.0, "recall": 0.0}


def test_accuracy():
    assert accuracy([1, 2, 3, 4], [1, 2, 0, 4]) == 75.0
    assert accuracy([], []) == 0.0
    with pytest.raises(ValueError):
        accuracy([1], [1, 2])


def test_tag_accuracy_is_over_words():
    assert tag_accuracy([["A"], ["A", "B", "C"]], [["B"], ["A", "B", "C"]]) == 75.0
    with pytest.raises(ValueError):
        tag_accuracy([["A"]], [["A", "B"]])
