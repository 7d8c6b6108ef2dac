"""Tests saves that are killed or fail, and restores on other numbers of devices, in real processes."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import jax
import pytest

from elmo_jax.checkpoints import manifest
from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.errors import TryAgain, UserError, exit_status
from tests.checkpoints.states import HERE, P, State, abstract, assert_equal, restored, saved, state
from tests.end_to_end.commands import Commands, Forked, wait


def child(name: str, *arguments: object, devices: int = 1) -> Forked:
    """Starts another process, which calls a function of this module."""
    return Commands(HERE).call(f"tests.checkpoints.test_manager_failures:{name}", *arguments, devices=devices)


def finished(name: str, *arguments: object, devices: int = 1) -> tuple[str, str]:
    ended = wait(child(name, *arguments, devices=devices))
    assert ended.status == 0, ended.stderr
    return ended.stdout, ended.stderr


def stop() -> None:
    """Stops this process, all threads of it."""
    os.kill(os.getpid(), signal.SIGSTOP)


def stopping_child(folder: str, moment: str) -> None:
    """Saves step 1, then stops in the middle of saving step 2."""
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, state(1))
    checkpoints.wait()
    write, describe = manifest.write, manifest.describe
    if moment == "before the manifest":
        manifest.describe = lambda *arguments: (describe(*arguments), stop())[0]
    elif moment == "before the rename":
        manifest.write = lambda *arguments: (write(*arguments), stop())[0]
    checkpoints.save(2, state(2, rows=16 if moment != "among the data" else 500_000))
    if moment == "among the data":
        stop()
    checkpoints.wait()


@pytest.mark.parametrize("moment", ["among the data", "before the manifest", "before the rename"])
def test_killed_in_a_save(tmp_path: Path, moment: str) -> None:
    process = child("stopping_child", str(tmp_path), moment)
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0] != "T":
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    assert wait(process).status == -signal.SIGKILL
    assert sorted(os.listdir(tmp_path)) == ["1", "2.orbax-checkpoint-tmp"]
    shutil.copytree(tmp_path / "2.orbax-checkpoint-tmp", tmp_path / "7.orbax-checkpoint-tmp")  # of an earlier kill
    checkpoints = Checkpoints(tmp_path)
    actual = checkpoints.restore(abstract(state(0)))
    assert actual is not None and actual[1] == 1
    assert_equal(actual[0], state(1))
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
    actual = checkpoints.restore(abstract(state(0)))
    assert actual is not None and actual[1] == 1
    assert_equal(actual[0], state(1))
    try:
        checkpoints.save(4, state(4))
    except UserError as error:
        print(error)
    checkpoints.save(5, state(5))
    checkpoints.close()


def test_a_write_that_fails_reaches_the_caller(tmp_path: Path) -> None:
    out, err = finished("failing_child", str(tmp_path))
    line = f"{tmp_path}: step {{}} could not be saved: File too large; the last good checkpoint is that of step 1"
    again = f"{tmp_path / '4'}: could not be saved before; save a later step, or start the run again"
    assert out.splitlines() == [line.format(2), line.format(3), line.format(4), again]
    assert err == ""  # no traceback of Orbax next to the one line
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
        actual = checkpoints.restore(wanted)
        assert actual is not None and actual[1] == restore
        assert jax.tree.map(lambda x: x.sharding, actual[0]) == shardings
        assert_equal(actual[0], state(restore))
    checkpoints.save(save, jax.device_put(target, shardings))
    checkpoints.close()
    print("devices", jax.device_count())


def test_any_number_of_devices_restores_what_another_saved(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    assert finished("sharding_child", str(tmp_path), 2, 1, devices=8) == ("devices 8\n", "")  # 1 -> 8, and quiet
    assert finished("sharding_child", str(tmp_path), 3, 2, devices=2)[0] == "devices 2\n"  # 8 -> 2
    actual, step = restored(tmp_path)  # 2 -> this process
    assert step == 3
    assert_equal(actual, state(3))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("UNAVAILABLE: Error writing gs://bucket/run: HTTP response code: 503"), TryAgain),
        (ConnectionResetError(104, "Connection reset by peer"), TryAgain),
        (type("ClientConnectorError", (OSError,), {})(111, "Cannot connect to host"), TryAgain),
        (type("ServerDisconnectedError", (Exception,), {})("Server disconnected"), TryAgain),
        (type("HttpError", (Exception,), {})("Service Unavailable, 503"), TryAgain),
        (ValueError("RESOURCE_EXHAUSTED: write timed out [os_error_code='28']"), UserError),
        (PermissionError(13, "Permission denied"), UserError),
        (OSError("Forbidden: bucket/run/checkpoints/500/m"), UserError),
        (RuntimeError("PERMISSION_DENIED: gs://bucket/connection reset/500 HTTP response code: 403"), UserError),
        (ValueError("Checkpoint for step 500 already exists."), UserError),
    ],
)
def test_a_bucket_that_does_not_answer_is_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(1))
    checkpoints.wait()
    checkpoints.save(2, state(2))
    assert checkpoints._manager is not None
    checkpoints._manager.wait_until_finished()

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints._manager, "wait_until_finished", fail)
        patch.setattr("elmo_jax.checkpoints.manager.files.in_bucket", lambda _: True)
        if expected is TryAgain:  # the bucket is not asked for its files
            patch.setattr(manifest, "steps_in", fail)
        with pytest.raises(expected, match=r"step 2 could not be saved: .*; .*the last good checkpoint") as raised:
            checkpoints.wait()
    assert exit_status(raised.value) == (75 if expected is TryAgain else 2)
    checkpoints.save(3, state(3))
    checkpoints.close()
    assert restored(tmp_path)[1] == 3


def test_a_first_save_that_was_killed_in_a_bucket_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a bucket, Orbax writes a step under its final name; the manifest is the last of its files."""
    (tmp_path / "37").mkdir()
    (tmp_path / "37" / "_CHECKPOINT_METADATA").write_text("{}")
    with pytest.raises(UserError, match="every checkpoint is damaged"):
        Checkpoints(tmp_path).restore(abstract(state(0)))
    monkeypatch.setattr(manifest, "in_bucket", lambda _: True)
    assert Checkpoints(tmp_path).restore(abstract(state(0))) is None
    assert Checkpoints(tmp_path).steps() == []
