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


def test_what_an_interrupted_start_leaves_is_usable(tmp_path: Path) -> None:
    """`finetune` was killed while it prepared its text, and while it wrote its first file."""
    for name in (".corpus.partial", ".corpus.partial.text", "corpus", ".config.json.0a1b2c3d.tmp"):
        (tmp_path / name).mkdir()
    check_usable(epath.Path(tmp_path))
    (tmp_path / "thesis").mkdir()
    with pytest.raises(UserError, match="holds something that is not a run"):
        check_usable(epath.Path(tmp_path))


def test_a_lock_on_a_file_that_was_deleted_with_its_folder_holds_nothing(
    run: epath.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        shutil.rmtree(run)  # between the opening and the lock, by the launch that ends
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(run), pytest.raises(UserError, match="is writing into this folder"), locked(run):
        raise AssertionError("both have the lock")


def test_a_file_in_the_way_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file/x: cannot be written \\(Not a directory\\)"):
        with locked(epath.Path(tmp_path / "file" / "x")):
            raise AssertionError("there is no such folder")


@pytest.fixture(params=[errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS])
def without_flock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without `flock`, where the lock is a lease as in a bucket, with short times."""
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(lock, "LEASE_SECONDS", 0.8)
    monkeypatch.setattr(fcntl, "flock", failing(request.param))


GONE = {"host": socket.gethostname(), "process": 999_999_999, "since": "then", "token": "x"}


def test_a_lease_that_is_renewed_is_respected(run: epath.Path, without_flock: None) -> None:
    with locked(run):
        with pytest.raises(UserError, match=f"process {os.getpid()} on {socket.gethostname()}"), locked(run):
            raise AssertionError("both have the lease")
        assert (run / LEASE).exists()
    assert not (run / LEASE).exists()


@pytest.mark.parametrize("content", [json.dumps(GONE), "damaged"])
def test_a_lease_that_is_not_renewed_is_taken_over(run: epath.Path, without_flock: None, capsys, content: str) -> None:
    """A process of this host that is not visible may be in another container, so that its number says nothing."""
    (run / LEASE).write_text(content)
    began = time.monotonic()
    with locked(run):
        assert time.monotonic() - began >= 0.8
        assert json.loads((run / LEASE).read_text())["process"] == os.getpid()
    assert "waiting for up to" in capsys.readouterr().err


CONTEND = """
import errno, fcntl, os, sys, time
from etils import epath
from elmo_jax.errors import UserError
from elmo_jax.runs import lock
def flock(*_): raise OSError(errno.ENOSYS, "none")
fcntl.flock, lock.HEARTBEAT_SECONDS, lock.LEASE_SECONDS = flock, 0.05, 0.8
print("ready", flush=True)
input()
try:
    with lock.locked(epath.Path(sys.argv[1])):
        print("locked", flush=True)
        input()
        print("ended", flush=True)
except UserError as error:
    print(error, flush=True)
"""


def contender(run: epath.Path) -> subprocess.Popen[str]:
    """A process that takes the lease when it is told to, and holds it until it is told again."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", CONTEND, os.fspath(run)], **pipes)
    assert process.stdout.readline() == "ready\n"
    return process


def tell(process: subprocess.Popen[str]) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.parametrize("left", [pytest.param(False, marks=pytest.mark.slow), True])
def test_of_launches_that_begin_at_once_one_has_the_lease(run: epath.Path, left: bool) -> None:
    """Also where each of them takes over the lease of a launch that is gone."""
    if left:
        (run / LEASE).write_text(json.dumps(GONE))
    processes = [contender(run) for _ in range(2)]
    for process in processes:
        tell(process)
    lines = [process.stdout.readline() for process in processes]
    assert sorted(line == "locked\n" for line in lines) == [False, True]
    assert any("is writing into this folder" in line for line in lines)
    for process in processes:
        process.communicate("\n")


@pytest.mark.slow
def test_a_launch_whose_lease_was_taken_over_ends(run: epath.Path) -> None:
    """It was suspended, so that the other could not see it."""
    first, second = contender(run), contender(run)
    tell(first)
    assert first.stdout.readline() == "locked\n"
    first.send_signal(signal.SIGSTOP)
    tell(second)
    assert second.stdout.readline() == "locked\n"
    first.send_signal(signal.SIGCONT)
    first.wait(timeout=60)
    out, errors = first.communicate()
    assert first.returncode == 2 and "ended" not in out
    assert f"process {second.pid} on {socket.gethostname()}" in errors and "has taken over" in errors
    assert json.loads((run / LEASE).read_text())["process"] == second.pid
    assert second.communicate("\n")[0] == "ended\n"


def test_an_error_of_flock_leaves_the_lock_of_another_launch(run: epath.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with locked(run):
        content = (run / LOCK).read_text()
        monkeypatch.setattr(fcntl, "flock", failing(errno.EIO))
        with pytest.raises(UserError, match="cannot be written \\(Input/output error\\)"), locked(run):
            raise AssertionError("both have the lock")
        assert (run / LOCK).read_text() == content and not (run / LEASE).exists()


def failing(error: int) -> Callable[..., None]:
    """Returns a `flock` that fails."""

    def flock(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    return flock
