"""A sentence has the same prediction in any company, unless its vectors are normalized over the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from etils import epath

import elmo_jax
from elmo_jax.runs.result import Finished
from elmo_jax.tasks.core.run import train_task
from tests.tasks.problems import PROBLEMS, config_of
from tests.tasks.tagging import write_problem

SENTENCES = [["Ann", "is", "good"], ["Bob", "is", "plain"], ["Zoë", "is", "awful"], ["Li", "was", "not", "great", "!"]]


@pytest.mark.parametrize(
    ("norm", "layers"),
    [
        ("tokens", "all"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("none", "all"), ("tokens", "top"), ("without_bos_eos", "all"))
        ),
    ],
)
def test_predictions_alone_in_a_batch_and_in_another_order(norm: str, layers: str, tmp_path: Path) -> None:
    write_problem(tmp_path)
    elmo = (f"bilm={tmp_path / 'bilm'}", f"elmo.layer_norm={norm}", f"elmo.layers={layers}", "train.epochs=3")
    config = config_of("sst", PROBLEMS["sst"](), tmp_path, *elmo)
    assert isinstance(train_task(config, epath.Path(tmp_path / "run"), "sst"), Finished)
    task = elmo_jax.load_task(tmp_path / "run")

    def probabilities(sentences: list[list[str]]) -> np.ndarray:
        return np.array([list(item["probabilities"].values()) for item in task.predict(sentences)])

    together = probabilities(SENTENCES)
    alone = np.concatenate([probabilities([sentence]) for sentence in SENTENCES])
    turned = probabilities(SENTENCES[::-1])[::-1]
    if norm != "without_bos_eos":
        np.testing.assert_allclose(alone, together, atol=2e-5)
    else:  # what bilm-tf's norm of the batch does
        assert np.abs(alone - together).max() > 2e-4
    np.testing.assert_allclose(turned, together, atol=2e-5)
