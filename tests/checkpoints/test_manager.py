"""Checkpoints to resume from: real saves, real damage, a real kill, a real write that fails."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from elmo_jax.checkpoints import failures, manifest
from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.errors import UserError

HERE = Path(__file__).parent
P = jax.sharding.PartitionSpec


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    """Resembles the training state: a dataclass with a nested dict, an Optax state and random keys."""

    step: jax.Array
    params: dict[str, Any]
    optimizer: Any
    carry: tuple[jax.Array, ...]
    typed_key: jax.Array
    key_data: jax.Array


def state(step: int, rows: int = 16) -> State:
    """A state that is a function of the step, so that a restored one can be checked without the original."""
    one, two, three = jax.random.split(jax.random.key(step), 3)
    params = {
        "token_encoder": {"char_embedding": jax.random.normal(one, (261, 5))},
        "forward": {"layer_0": {"kernel": jax.random.normal(two, (6, 40)).astype(jnp.bfloat16)}},
        "softmax": {"kernel": jax.random.normal(three, (rows, 4)), "bias": jnp.zeros(rows)},
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)).init(params)
    carry = (jnp.full((rows, 3), step, jnp.float32), jnp.arange(rows) % 3 == 0)
    return State(jnp.int32(step), params, optimizer, carry, jax.random.key(step), jax.random.PRNGKey(step))


def abstract(tree: Any, sharding: Any = None) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding or x.sharding), tree)


def assert_equal(found: Any, expected: Any) -> None:
    """Asserts that two states are equal bit for bit, in structure and in dtypes."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, one), two in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == two.dtype, path
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, two = jax.random.key_data(one), jax.random.key_data(two)
        assert np.asarray(one).tobytes() == np.asarray(two).tobytes() and one.shape == two.shape, path


def saved(folder: Path, *steps: int, keep: int = 9) -> Path:
    checkpoints = Checkpoints(folder, keep)
    for step in steps:
        checkpoints.save(step, state(step))
    checkpoints.close()
    return folder


def restored(folder: Path) -> tuple[State, int]:
    found = Checkpoints(folder).restore(abstract(state(0)))
    assert found is not None
    return found


def listing(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def child(call: str, devices: int = 1) -> Any:
    """Runs a call of this module in another process."""
    environment = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONPATH=os.pathsep.join([str(HERE), str(HERE.parents[1])]))
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    command = [sys.executable, "-c", f"import test_manager; test_manager.{call}"]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finished(call: str, devices: int = 1) -> tuple[str, str]:
    process = child(call, devices)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out, err


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("whole") / "checkpoints", 10, 20)


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    found, step = restored(saved(tmp_path / "c", 3, 7))
    assert step == 7
    assert_equal(found, state(7))
    assert_equal(Checkpoints(tmp_path / "c").restore_step(3, abstract(state(0))), state(3))


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


def test_any_damage_of_the_newest_is_found(two_steps: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each file that is deleted, truncated or has one flipped bit gives the step before or the same numbers."""

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    def cut(path: Path, size: int) -> None:
        os.truncate(path, size)

    sealed = set(manifest.read(manifest.epath.Path(two_steps / "20")).files)  # type: ignore[union-attr]
    folder = tmp_path / "c"
    for name in listing(two_steps / "20"):
        if (two_steps / "20" / name).is_dir():
            continue
        size = (two_steps / "20" / name).stat().st_size
        cuts = [functools.partial(cut, size=n) for n in {0, 1, size // 2, size - 1} if n < size]
        for harm in (Path.unlink, flip, *cuts):
            shutil.copytree(two_steps, folder)
            harm(folder / "20" / name)
            caplog.clear()
            found, step = restored(folder)
            assert_equal(found, state(step))
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
        (lambda s: dataclasses.replace(s, carry=s.carry[:1]), "holds, beside what is expected, 'carry/1'"),
        (lambda s: dataclasses.replace(s, step=jnp.zeros(2, jnp.int32)), r"'step' is int32\[\], expected int32\[2\]"),
        (lambda s: dataclasses.replace(s, step=jnp.float32(0)), r"'step' is int32\[\], expected float32\[\]"),
    ],
)
def test_another_model_is_an_error(two_steps: Path, change: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Checkpoints(two_steps).restore_step(20, abstract(change(state(0))))


def killed_child(folder: str, moment: str) -> None:
    """Saves step 1, then stops in the middle of saving step 2 and says so."""
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, state(1))
    checkpoints.wait()
    write, describe = manifest.write, manifest.describe

    def stop() -> None:
        print("now", flush=True)
        time.sleep(3600)

    if moment == "before the manifest":
        manifest.describe = lambda *arguments: (describe(*arguments), stop())[0]
    elif moment == "before the rename":
        manifest.write = lambda *arguments: (write(*arguments), stop())[0]
    checkpoints.save(2, state(2, rows=16 if moment != "among the data" else 2_000_000))
    if moment == "among the data":
        print("now", flush=True)
    checkpoints.wait()
    time.sleep(3600)


@pytest.mark.parametrize("moment", ["among the data", "before the manifest", "before the rename"])
def test_killed_in_a_save(tmp_path: Path, moment: str) -> None:
    process = child(f"killed_child({str(tmp_path)!r}, {moment!r})")
    assert process.stdout.readline() == "now\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert sorted(os.listdir(tmp_path)) == ["1", "2.orbax-checkpoint-tmp"]
    shutil.copytree(tmp_path / "2.orbax-checkpoint-tmp", tmp_path / "7.orbax-checkpoint-tmp")  # of an earlier kill
    checkpoints = Checkpoints(tmp_path)
    found = checkpoints.restore(abstract(state(0)))
    assert found is not None and found[1] == 1
    assert_equal(found[0], state(1))
    checkpoints.save(2, state(2))
    checkpoints.close()
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]
    assert_equal(restored(tmp_path)[0], state(2))


def failing_child(folder: str) -> None:
    """Files may not grow over 100 kB for a while, as on a disk that is full."""
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, state(1))
    checkpoints.wait()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    big = State(**{**vars(state(2)), "params": {"w": jax.random.normal(jax.random.key(0), (300_000,))}})
    ways = (checkpoints.wait, lambda: checkpoints.save(9, state(9)), checkpoints.close)
    for step, raising in enumerate(ways, start=2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, unlimited[1]))
        checkpoints.save(step, big)
        try:
            raising()
        except UserError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    found = checkpoints.restore(abstract(state(0)))
    assert found is not None and found[1] == 1
    assert_equal(found[0], state(1))
    try:
        checkpoints.save(4, state(4))
    except UserError as error:
        print(error)
    checkpoints.save(5, state(5))
    checkpoints.close()


def test_a_write_that_fails_reaches_the_caller(tmp_path: Path) -> None:
    out, err = finished(f"failing_child({str(tmp_path)!r})")
    line = f"{tmp_path}: step {{}} could not be saved: File too large; the last good checkpoint is that of step 1"
    again = f"{tmp_path / '4'}: could not be saved before; save a later step, or start the run again"
    assert out.splitlines() == [line.format(2), line.format(3), line.format(4), again]
    assert err == ""  # no traceback of Orbax besides the one line
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.steps() == [1, 5]
    checkpoints.save(6, state(6))  # what a failed save left is cleared away
    checkpoints.close()
    assert sorted(os.listdir(tmp_path)) == ["1", "5", "6"]
    assert_equal(checkpoints.restore_step(5, abstract(state(0))), state(5))


def test_a_manifest_that_cannot_be_written_fails_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    checkpoints = Checkpoints(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(manifest, "write", full)
        checkpoints.save(1, state(1))
        with pytest.raises(UserError, match="step 1 could not be saved: No space left on device; there is no earlier"):
            checkpoints.wait()
    checkpoints.save(2, state(2))
    checkpoints.close()
    assert_equal(restored(tmp_path)[0], state(2))


def test_only_what_is_told_otherwise_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path, 1)
    absl = logging.getLogger("absl")
    absl.warning("Waiting for previous save to complete took %f seconds. …", 1.5)
    absl.warning("something else")
    try:
        raise ValueError("not of Orbax")
    except ValueError:
        absl.exception("failed")
        logging.getLogger("asyncio").exception("failed")
    assert [record.getMessage() for record in caplog.records] == ["something else", "failed", "failed"]


def test_only_what_is_told_otherwise_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorStore's late deliveries to a closed loop depend on timing, so they are made up here."""
    reported: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(str(unraisable.exc_value)))
    for _ in range(2):
        failures.tell_once()
    for error in (RuntimeError("Event loop is closed"), RuntimeError("another"), ValueError("Event loop is closed")):
        sys.unraisablehook(types.SimpleNamespace(exc_value=error))  # type: ignore[arg-type]
    assert reported == ["another", "Event loop is closed"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="step 1 could not be saved: "):
        Checkpoints(tmp_path / "file" / "checkpoints").save(1, state(1))


def sharded(tree: Any) -> Any:
    """On all devices: rows divided where they can be, all else on every device."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def spec(leaf: Any) -> P:
        return P("data") if leaf.ndim and leaf.shape[0] == 16 else P()

    return jax.tree.map(lambda leaf: jax.NamedSharding(mesh, spec(leaf)), tree)


def sharding_child(folder: str, save: int, restore: int) -> None:
    target = state(save)
    checkpoints = Checkpoints(folder)
    shardings = sharded(target)
    if restore:
        wanted = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state(restore), shardings
        )
        found = checkpoints.restore(wanted)
        assert found is not None and found[1] == restore
        assert jax.tree.map(lambda x: x.sharding, found[0]) == shardings
        assert_equal(found[0], state(restore))
    checkpoints.save(save, jax.device_put(target, shardings))
    checkpoints.close()
    print("devices", jax.device_count())


def test_any_number_of_devices_restores_what_another_saved(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    assert finished(f"sharding_child({str(tmp_path)!r}, 2, 1)", devices=8) == ("devices 8\n", "")  # 1 -> 8, and quiet
    assert finished(f"sharding_child({str(tmp_path)!r}, 3, 2)", devices=2)[0] == "devices 2\n"  # 8 -> 2
    found, step = restored(tmp_path)  # 2 -> this process
    assert step == 3
    assert_equal(found, state(3))
