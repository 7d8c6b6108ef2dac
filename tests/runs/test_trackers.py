"""Tests that a run reports to a tracker, and neither waits for it nor ends with it."""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from etils import epath

from elmo_jax.config import Config, TrainConfig
from elmo_jax.errors import UserError
from elmo_jax.runs import metrics as trackers
from elmo_jax.runs.metrics import MetricsLog
from elmo_jax.settings import from_dict


class Tracker:
    """A tracker that keeps what it gets; or fails when it is to take a record."""

    def __init__(self, *made_of):
        self.made_of, self.records, self.closed = made_of, [], False

    def log(self, step, values):
        self.records.append((step, dict(values)))

    def close(self):
        self.closed = True


class Failing(Tracker):
    def log(self, step, values):
        raise ConnectionError("no route\nto host")


@pytest.fixture
def workdir(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"config": {"train": {"seed": 3}}}))
    return epath.Path(tmp_path)


def report(monkeypatch, workdir, kind, step=0, records=5):
    """Reports the metrics of some steps, and returns the tracker."""
    made = []

    def make(*arguments):
        made.append(kind(*arguments))
        return made[-1].log, made[-1].close

    monkeypatch.setattr(trackers, "_wandb", make)
    log = MetricsLog(workdir, step, ("wandb",))
    for number in range(step + 1, step + records + 1):
        log.write(number, {"train/loss": number / 2, "tokens_per_second": [1.0, 2.0]})
    log.close()
    return made[0]


def test_a_tracker_gets_all_metrics(monkeypatch, workdir):
    tracker = report(monkeypatch, workdir, Tracker)
    assert tracker.records == [(n, {"train/loss": n / 2, "tokens_per_second/largest": 2.0}) for n in range(1, 6)]
    assert tracker.closed and not (workdir / "tensorboard").exists()
    again = report(monkeypatch, workdir, Tracker, step=3)
    assert again.made_of == tracker.made_of  # the folder, the id in it, and the settings
    assert again.made_of[0] == workdir and len(again.made_of[1]) == 8 and again.made_of[2] == {"train": {"seed": 3}}
    assert [step for step, _ in again.records] == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_a_damaged_identity_is_named(workdir, content):
    (workdir / "tracker.json").write_text(content)
    with pytest.raises(UserError, match=r"tracker.json: damaged; delete it, and W&B gets a new run"):
        trackers.open_tracker(workdir)


def test_a_tracker_that_fails_is_reported_once(monkeypatch, workdir, capsys):
    report(monkeypatch, workdir, Failing)
    assert capsys.readouterr().err == (
        "warning: train.trackers: wandb has failed (ConnectionError: no route to host); it gets no more metrics."
        " Training continues\n"
    )
    assert len((workdir / "metrics.jsonl").read_text().splitlines()) == 5


def test_a_tracker_that_fails_at_its_end_holds_up_nothing(capsys):
    class Unfinished(Tracker):
        def close(self):
            raise ConnectionError("gone")

    tracker = trackers.InBackground(lambda: (Unfinished().log, Unfinished().close))
    tracker.log(1, {"train/loss": 1.0})
    tracker.close()
    assert "wandb has failed (ConnectionError: gone)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("waiting", "message"),
    [
        (100, "has not taken the last metrics within 0 seconds; they are lost"),
        (2, "does not answer; its metrics from step 4 on are lost"),
    ],
)
def test_a_tracker_that_hangs_holds_up_nothing(monkeypatch, workdir, capsys, waiting, message):
    taken, released = threading.Event(), threading.Event()

    class Hanging(Tracker):
        def log(self, step, values):
            taken.set()
            released.wait()

    monkeypatch.setattr(trackers, "_SECONDS", 0.01)
    monkeypatch.setattr(trackers, "_WAITING", waiting)
    write = trackers.InBackground.log

    def after_the_first(self, step, values):
        write(self, step, values)
        assert step > 1 or taken.wait(60)  # the first record is no longer in the queue

    monkeypatch.setattr(trackers.InBackground, "log", after_the_first)
    report(monkeypatch, workdir, Hanging)
    released.set()
    assert capsys.readouterr().err == f"warning: train.trackers: wandb {message}. Training continues\n"


def test_mistakes(monkeypatch):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    trackers.check_trackers(("tensorboard",))
    with pytest.raises(UserError, match=r"wandb is not installed; run: pip install 'elmo_jax\[wandb\]'"):
        trackers.check_trackers(("tensorboard", "wandb"))
    for given in (["wandb", "mlflow"], ["wandb", "wandb"], "wandb"):
        with pytest.raises(UserError, match="config.train.trackers: expected"):
            from_dict({"train": {"trackers": given}}, Config)
    assert from_dict({"trackers": ["tensorboard,wandb"]}, TrainConfig).trackers == ("tensorboard", "wandb")


CODE = """
import sys
from etils import epath
from elmo_jax.runs.metrics import MetricsLog
step = int(sys.argv[2])
log = MetricsLog(epath.Path(sys.argv[1]), step, ("wandb",))
for number in range(step + 1, step + 4):
    log.write(number, {"train/loss": 0.125 + number})
log.close()
"""


@pytest.mark.slow
def test_the_real_package(workdir, monkeypatch):
    """W&B runs offline; the second launch continues the run of the first."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for step in ("0", "2"):
        ended = subprocess.run([sys.executable, "-c", CODE, workdir, step], capture_output=True, text=True, check=True)
        assert "warning" not in ended.stderr
    identity = json.loads((workdir / "tracker.json").read_text())["id"]
    files = sorted(Path(workdir).glob(f"wandb/offline-run-*-{identity}/run-{identity}.wandb"))
    assert len(files) == 2
    for file, numbers in zip(files, ((1, 2, 3), (3, 4, 5)), strict=True):
        content = file.read_bytes()  # protocol buffers with JSON values
        assert all(str(0.125 + number).encode() in content for number in numbers)


@pytest.mark.slow
def test_a_server_that_never_answers(workdir, monkeypatch):
    """The process ends by itself, with one line; W&B's own threads delay its end by about a minute."""
    pytest.importorskip("wandb")
    code = "from elmo_jax.runs import metrics\nmetrics._SECONDS = 5\n" + CODE
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        ended = subprocess.run(
            [sys.executable, "-c", code, workdir, "0"], stderr=subprocess.PIPE, text=True, check=True, timeout=180
        )
    assert "wandb has not taken the last metrics within 5 seconds; they are lost" in ended.stderr
    assert "Traceback" not in ended.stderr
