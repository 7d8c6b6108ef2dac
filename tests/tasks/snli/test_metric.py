import pytest

from elmo_jax.tasks.snli.metric import metric


def test_accuracy():
    gold = ["neutral", "entailment", "neutral", "contradiction"]
    assert metric(gold, ["neutral", "entailment", "neutral", "neutral"]) == {"accuracy": 75.0}
    with pytest.raises(ValueError):
        metric(gold, gold[:3])
