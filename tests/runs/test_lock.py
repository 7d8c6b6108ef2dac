"""One launch at a time writes into the folder of a run."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from etils import epath

from elmo_jax.errors import UserError
from elmo_jax.runs import lock
from elmo_jax.runs.folder import check_usable, locked_for
from elmo_jax.runs.lock import LEASE, LOCK, locked

pytestmark = pytest.mark.quick

HOLD = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"


@pytest.fixture
def run(tmp_path: Path) -> epath.Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").touch()
    return epath.Path(tmp_path / "run")


def test_the_second_launch_is_refused_and_told_of_the_first(run: epath.Path) -> None:
    with locked(run):
        with pytest.raises(UserError, match=f"process {os.getpid()} on {socket.gethostname()} \\(since 20") as caught:
            with locked(run):
                raise AssertionError("both have the lock")
        assert "\n" not in str(caught.value) and str(run) in str(caught.value)
        with pytest.raises(UserError, match="is writing into this folder"), locked_for(run / "export"):
            raise AssertionError("both have the lock")
        assert json.loads((run / LOCK).read_text())["process"] == os.getpid()
    with locked(run):  # it was released
        pass
    assert sorted(os.listdir(run)) == [LOCK, "config.json"]


def test_a_killed_holder_keeps_no_lock(run: epath.Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run / LOCK)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None and process.stdout.readline()
        with pytest.raises(UserError, match="another launch is writing"), locked(run):
            raise AssertionError("both have the lock")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (run / LOCK).exists()
    with locked(run):
        pass


def test_a_lock_of_another_host_may_be_of_one_that_is_gone(run: epath.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "OTHER_HOST_SECONDS", 0.5)
    monkeypatch.setattr(lock.socket, "gethostname", lambda: "there")
    with locked(run):
        monkeypatch.setattr(lock.socket, "gethostname", lambda: "here")
        began = time.monotonic()
        with pytest.raises(UserError, match="on there"), locked(run):
            raise AssertionError("both have the lock")
        assert time.monotonic() - began >= 0.5


def test_a_folder_of_its_own_is_made_and_stays_usable(tmp_path: Path) -> None:
    folder = epath.Path(tmp_path / "a" / "b")
    with locked(folder):
        assert (folder / LOCK).exists()
    assert os.listdir(folder) == [LOCK]
    check_usable(folder)


def test_a_lock_on_a_file_that_was_deleted_with_its_folder_holds_nothing(
    run: epath.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        shutil.rmtree(run)  # between the opening and the lock, by the launch that ends
        fcntl.flock(descriptor, operation)

    monkeypatch.setattr(lock.fcntl, "flock", late)
    with locked(run), pytest.raises(UserError, match="is writing into this folder"), locked(run):
        raise AssertionError("both have the lock")


def test_a_file_in_the_way_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file/x: cannot be written \\(Not a directory\\)"):
        with locked(epath.Path(tmp_path / "file" / "x")):
            raise AssertionError("there is no such folder")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(lock, "LEASE_SECONDS", 0.4)
    monkeypatch.setattr(lock, "SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(lock, "in_bucket", lambda path: True)
    monkeypatch.setattr(lock, "_now", lambda: f"{time.monotonic()}")


def test_a_lease_that_is_renewed_is_respected(run: epath.Path, quick: None) -> None:
    with locked(run):
        with pytest.raises(UserError, match=f"process {os.getpid()} on {socket.gethostname()}"), locked(run):
            raise AssertionError("both have the lease")
        assert (run / LEASE).exists()
    assert not (run / LEASE).exists()


def test_a_lease_that_is_not_renewed_is_taken_over(run: epath.Path, quick: None, capsys) -> None:
    gone = {"host": "gone", "process": 1, "since": "then", "token": "x", "heartbeat": "then"}
    for content in (json.dumps(gone), "damaged"):
        (run / LEASE).write_text(content)
        began = time.monotonic()
        with locked(run):
            assert time.monotonic() - began >= 0.4
            assert json.loads((run / LEASE).read_text())["process"] == os.getpid()
        assert "waiting for up to" in capsys.readouterr().err


def test_of_two_that_take_a_lease_at_once_one_has_it(
    run: epath.Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"host": "there", "process": 1, "since": "now", "token": "x", "heartbeat": "now"}

    def later(seconds: float) -> None:
        (run / LEASE).write_text(json.dumps(other))

    monkeypatch.setattr(lock.time, "sleep", later)
    with pytest.raises(UserError, match="process 1 on there"), locked(run):
        raise AssertionError("both have the lease")


def test_a_lease_that_is_lost_is_told(run: epath.Path, quick: None, capsys) -> None:
    other = {"host": "there", "process": 1, "since": "now", "token": "x", "heartbeat": "now"}
    with locked(run):
        (run / LEASE).write_text(json.dumps(other))
        time.sleep(0.3)
    assert "process 1 on there (since now) has taken over" in capsys.readouterr().err
    assert (run / LEASE).exists()  # that of the other


@pytest.mark.parametrize("error", [errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_flock_has_a_lease(
    run: epath.Path, quick: None, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    monkeypatch.setattr(lock, "in_bucket", lambda path: False)
    monkeypatch.setattr(lock.fcntl, "flock", failing(error))
    with locked(run):
        assert (run / LEASE).exists()
    assert not (run / LEASE).exists()


def test_an_error_of_flock_leaves_the_lock_of_another_launch(run: epath.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with locked(run):
        content = (run / LOCK).read_text()
        monkeypatch.setattr(lock.fcntl, "flock", failing(errno.EIO))
        with pytest.raises(UserError, match="cannot be written \\(Input/output error\\)"), locked(run):
            raise AssertionError("both have the lock")
        assert (run / LOCK).read_text() == content and not (run / LEASE).exists()


def failing(error: int) -> Callable[..., None]:
    """Returns a `flock` that fails."""

    def flock(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    return flock
