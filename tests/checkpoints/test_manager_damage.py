"""Tests checkpoints that are damaged, or of another model."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from elmo_jax.checkpoints import manifest
from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.errors import UserError
from tests.checkpoints.states import abstract, assert_equal, listing, restored, saved, state


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("whole") / "checkpoints", 10, 20)


def test_any_damage_of_the_newest_is_found(two_steps: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each file that is deleted, truncated or has one flipped bit gives the step before or the same numbers."""

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    def cut(path: Path) -> None:
        os.truncate(path, path.stat().st_size // 2)

    def empty(path: Path) -> None:
        os.truncate(path, 0)

    sealed = set(manifest.read(manifest.epath.Path(two_steps / "20")).files)  # type: ignore[union-attr]
    folder = tmp_path / "c"
    for name in listing(two_steps / "20"):
        if (two_steps / "20" / name).is_dir():
            continue
        for harm in (Path.unlink, flip, cut, *([empty] if name == manifest.NAME else [])):
            shutil.copytree(two_steps, folder)
            harm(folder / "20" / name)
            caplog.clear()
            actual, step = restored(folder)
            assert_equal(actual, state(step))
            if name in sealed or name == manifest.NAME:
                assert step == 10, (name, harm)
                assert [record.levelno for record in caplog.records] == [logging.WARNING]
                assert f"{folder / '20'}: damaged checkpoint: " in caplog.text
            shutil.rmtree(folder)
    assert len(sealed) > 8


def test_what_is_wrong_is_named(two_steps: Path, tmp_path: Path) -> None:
    shutil.copytree(two_steps, tmp_path / "c")
    data = max((tmp_path / "c" / "20").rglob("*"), key=lambda path: path.stat().st_size)
    size = data.stat().st_size
    os.truncate(data, 7)
    wrong = manifest.damage(manifest.epath.Path(tmp_path / "c" / "20"), 20)
    assert wrong == f"{data.relative_to(tmp_path / 'c' / '20')} has 7 bytes of {size}"
    with pytest.raises(UserError, match=f"20: damaged checkpoint: .* has 7 bytes of {size}; choose another step"):
        Checkpoints(tmp_path / "c").restore_step(20, abstract(state(0)))
    with pytest.raises(UserError, match="no checkpoint of step 15; there are: 10, 20"):
        Checkpoints(tmp_path / "c").restore_step(15, abstract(state(0)))


def test_the_damaged_step_is_saved_again(two_steps: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    shutil.copytree(two_steps, folder)
    (folder / "20" / "default" / "_METADATA").unlink()
    checkpoints = Checkpoints(folder, keep=3)
    assert checkpoints.restore(abstract(state(0)))[1] == 10  # type: ignore[index]
    assert sorted(os.listdir(folder)) == ["10", "20.damaged"]
    checkpoints.save(15, state(15))
    checkpoints.save(20, state(20))
    checkpoints.close()
    assert sorted(os.listdir(folder)) == ["10", "15", "20"]
    assert_equal(restored(folder)[0], state(20))


def test_all_damaged_is_an_error_and_never_a_fresh_start(two_steps: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    shutil.copytree(two_steps, folder)
    for step in ("10", "20"):
        (folder / step / "default" / "manifest.ocdbt").unlink()
    before = listing(folder)
    for _ in range(2):
        with pytest.raises(UserError, match=f"{re.escape(str(folder))}: every checkpoint is damaged"):
            Checkpoints(folder).restore(abstract(state(0)))
    assert listing(folder) == before
    shutil.rmtree(folder / "10")
    (folder / "20").rename(folder / "20.damaged")
    with pytest.raises(UserError, match="every checkpoint is damaged"):
        Checkpoints(folder).restore(abstract(state(0)))


def test_only_the_parameters_without_touching_the_folder(two_steps: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    shutil.copytree(two_steps, folder)
    (folder / "30.orbax-checkpoint-tmp").mkdir()  # the run continues in the meantime
    (folder / "20" / "default" / "_METADATA").unlink()
    before = listing(folder)
    params, step = Checkpoints(folder).restore_params()
    assert step == 10
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(params))
    assert_equal(params, jax.tree.map(np.asarray, state(10).params))
    assert listing(folder) == before
    with pytest.raises(UserError, match="none: no checkpoint here"):
        Checkpoints(tmp_path / "none").restore_params()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: dataclasses.replace(s, carry=(*s.carry, s.step)), "the checkpoint lacks 'carry/2'"),
        (lambda s: dataclasses.replace(s, carry=s.carry[:1]), "holds, besides what is expected, 'carry/1'"),
        (lambda s: dataclasses.replace(s, step=jnp.zeros(2, jnp.int32)), r"'step' is int32\[\], expected int32\[2\]"),
        (lambda s: dataclasses.replace(s, step=jnp.float32(0)), r"'step' is int32\[\], expected float32\[\]"),
    ],
)
def test_another_model_is_an_error(two_steps: Path, change: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Checkpoints(two_steps).restore_step(20, abstract(change(state(0))))
