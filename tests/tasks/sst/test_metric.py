import pytest

from elmo_jax.tasks.sst.metric import metric


def test_accuracy():
    assert metric([0, 1, 2, 4], [0, 1, 2, 3]) == {"accuracy": 75.0}
    with pytest.raises(ValueError):
        metric([0], [0, 1])
