"""Tests that a task can train the biLM too: which parts change and when, at which rate, and what a run then has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

import elmo_jax
from elmo_jax.checkpoints.layout import flatten, parameter_shapes, unflatten
from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.errors import UserError
from elmo_jax.runs.result import read_result
from elmo_jax.tasks.core.config import ElmoConfig
from elmo_jax.tasks.core.program import unfrozen
from elmo_jax.tasks.registry import default_config, task_config
from tests.tasks.tagging import BILM, train, write_problem

TRAINABLE = ("elmo.precompute=false", "elmo.trainable=all", "train.epochs=2")


def trained(run: Path, step: int) -> dict[str, Any]:
    params, _ = Checkpoints(epath.Path(run) / "seed_0" / "checkpoints").restore_params(step, "params")
    return flatten(params["inputs"]["bilm"])


@pytest.mark.slow
def test_a_trained_bilm_is_in_the_run_and_predicts(tmp_path: Path) -> None:
    write_problem(tmp_path)
    given = (f"bilm={tmp_path / 'bilm'}", *TRAINABLE, "elmo.learning_rate=0.01")
    train(tmp_path, tmp_path / "run", *given)
    result = read_result(epath.Path(tmp_path / "run"))
    assert result is not None
    frozen = flatten(elmo_jax.load_bilm(tmp_path / "bilm").params)
    actual = trained(tmp_path / "run", result["seeds"][0]["step"])
    assert actual.keys() == frozen.keys()
    changes = {path: float(np.abs(actual[path] - frozen[path]).max()) for path in actual}
    # Adam moves a number by at most about its rate, 0.01 here and 0.05 in the task, per update; there are 10.
    assert all(0 < change < 0.2 for change in changes.values()), changes
    assert result["parameters"] < 2_000  # of the task, without the biLM
    task = elmo_jax.load_task(tmp_path / "run")
    assert task.evaluate(str(tmp_path / "test.conllu")) == pytest.approx(result["seeds"][0]["test"])


def test_layers_are_unfrozen_from_the_top() -> None:
    ones = unflatten({path: jnp.ones(shape) for path, shape in parameter_shapes(BILM).items()})
    gradient = {"inputs": {"bilm": ones, "words": jnp.ones(3)}, "model": jnp.ones(2)}
    elmo = ElmoConfig(precompute=False, trainable="all", unfreeze_epochs=2)
    for epoch, expected in (
        (0, {"layer_1"}),
        (1, {"layer_1"}),
        (2, {"layer_0", "layer_1"}),
        (4, {"layer_0", "layer_1", "token"}),
    ):
        actual = unfrozen(gradient, elmo, 2, jnp.asarray(epoch))
        assert jnp.all(actual["model"] == 1) and jnp.all(actual["inputs"]["words"] == 1)
        for path, leaf in flatten(actual["inputs"]["bilm"]).items():
            name = "token" if path.startswith("token_encoder") else path.split("/")[1]
            assert jnp.all(leaf == (name in expected)), (epoch, path)


@pytest.mark.parametrize(
    ("elmo", "expected"),
    [
        ({"trainable": "lstms"}, "config.elmo.trainable: needs precompute=false"),
        ({"trainable": "all", "precompute": False, "layers": "token"}, "config.elmo.trainable: needs"),
        ({"learning_rate": 0.1}, "config.elmo.trainable: none; learning_rate and unfreeze_epochs would have no effect"),
    ],
)
def test_settings_that_contradict_each_other(elmo: dict[str, Any], expected: str) -> None:
    config = default_config("pos")
    config.elmo.update(elmo)
    with pytest.raises(UserError, match=expected):
        task_config(config)
