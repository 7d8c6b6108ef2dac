"""Checkpoints to resume from: real saves, real damage, a real kill, a real write that fails."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.errors import UserError
from tests.checkpoints.states import abstract, assert_equal, restored, saved, state


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("whole") / "checkpoints", 10, 20)


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    actual, step = restored(saved(tmp_path / "c", 3, 7))
    assert step == 7
    assert_equal(actual, state(7))
    assert_equal(Checkpoints(tmp_path / "c").restore_step(3, abstract(state(0))), state(3))


def test_saving_copies_on_all_devices_compiles_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    everywhere = jax.device_put(state(1), jax.NamedSharding(mesh, jax.sharding.PartitionSpec()))
    with jax.log_compiles():
        checkpoints = Checkpoints(tmp_path, keep=1)
        checkpoints.save(1, everywhere)
        checkpoints.close()
    assert jax.device_count() > 1 and [m for m in caplog.messages if m.startswith("Compiling")] == []
    assert_equal(Checkpoints(tmp_path).restore_step(1, abstract(everywhere)), state(1))


def test_an_empty_or_missing_folder_is_a_fresh_start(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none").restore(abstract(state(0))) is None
    assert not (tmp_path / "none").exists()
    (tmp_path / "tmp" / "5.orbax-checkpoint-tmp").mkdir(parents=True)  # killed in the first save
    assert Checkpoints(tmp_path / "tmp").restore(abstract(state(0))) is None


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, heldout in ((1, 50.0), (2, 30.0), (3, None), (4, 40.0), (5, float("nan"))):
        checkpoints.save(step, state(step), heldout)
    checkpoints.wait()
    assert checkpoints.steps() == [2, 4, 5]
    assert checkpoints.best_step() == 2
    checkpoints.close()
    checkpoints = Checkpoints(tmp_path, keep=2)  # as another launch of the run
    assert checkpoints.restore(abstract(state(0))) is not None
    checkpoints.save(6, state(6), 20.0)
    checkpoints.save(7, state(7))
    checkpoints.close()
    assert Checkpoints(tmp_path).steps() == [6, 7]
    assert Checkpoints(tmp_path).best_step() == 6


def test_a_perplexity_that_comes_later_is_noted(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, state(1))
    assert checkpoints.best_step() is None
    checkpoints.save(1, state(1), 12.5)
    checkpoints.save(2, state(2))
    checkpoints.close()
    assert checkpoints.steps() == [1, 2]
    assert checkpoints.best_step() == 1
    assert_equal(checkpoints.restore_step(1, abstract(state(0))), state(1))


def test_a_foreign_checkpoint_of_the_same_step_is_not_replaced(two_steps: Path) -> None:
    with pytest.raises(UserError, match=r"20: holds a checkpoint this run did not make"):
        Checkpoints(two_steps).save(20, state(20))


def test_a_donated_state_is_saved_as_it_was(tmp_path: Path) -> None:
    change = jax.jit(lambda tree: jax.tree.map(lambda x: x * 2 + 1, tree), donate_argnums=0)
    make = functools.partial(jax.random.normal, jax.random.key(1), (1_000_000,))
    tree = {"params": {"w": make()}}
    checkpoints = Checkpoints(tmp_path)
    with jax.transfer_guard("disallow"):
        checkpoints.save(1, tree)
    for _ in range(3):
        tree = change(tree)
    jax.block_until_ready(tree)
    checkpoints.close()
    assert_equal(checkpoints.restore_params()[0]["w"], np.asarray(make()))
