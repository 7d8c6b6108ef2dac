"""Mistakes on the command line and damaged files of a run: one line, before anything is computed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import jax
import pytest
from etils import epath

import elmo_jax
from elmo_jax.cli.main import main
from elmo_jax.cli.values import check_distinct
from elmo_jax.data.corpus import Corpus
from elmo_jax.errors import UserError, exit_status
from elmo_jax.files import parse_path, write_text
from elmo_jax.runs.result import read_result

pytestmark = pytest.mark.quick

RUN = ("pretrain", "--config", "nowhere.py", "--workdir")
EVALUATE = ("evaluate", "nowhere", "--data", "nowhere.txt")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            (*EVALUATE, "--batch-size", "-5"),
            "--batch-size: expected a whole number of at least 1 and at most 65,536, got",
        ),
        ((*EVALUATE, "--json", "nowhere/x.json"), "--json: no folder 'nowhere'; make it first"),
        ((*EVALUATE, "--per-sentence", "file/x"), "--per-sentence: no folder 'file'"),
        (
            (*EVALUATE, "--json", "-"),
            "--json: expected a path, got '-', which is no standard stream here; a file '-' is",
        ),
        (("task", "predict", "run", "--text", "a", "--out", "-"), "--out: expected a path, got '-'"),
        (("embed", "model", "text.txt", "-"), "expected a path, got '-'"),
        (("prepare", "sotu", "--out", "-"), "--out: expected a path, got '-'"),
        ((*EVALUATE, "--json", "."), "expected the name of a file, got the folder '.'"),
        ((*EVALUATE, "--json", "a", "--per-sentence", "./a"), "--per-sentence: a is the file of --json"),
        (("evaluate", "out", "--data", "file", "--json", "file"), "--json: file is the file of --data file, which"),
        (
            ("finetune", "--from", "a", "--data", "b", "--workdir", "c", "--epochs", "nan"),
            "1,000,000, got 'nan'",
        ),
        ((*RUN, "file:///tmp/x"), "expected a path on this machine or in a bucket, gs://…, got 'file:///tmp/x'"),
        ((*RUN, "~nouser/x"), "'~nouser/x': there is no user 'nouser'"),
        ((*RUN, "a\0b"), "since it holds a zero byte"),
        ((*RUN, "caf\udce9"), r"b'caf\xe9': expected text in UTF-8"),
        ((*RUN, ""), "--workdir: expected a path, got ''"),
        (("evaluate", "x", "--data=--"), "--data=--: expected a value after the ="),
        (("evaluate", "y" * 5000, "--data", "x"), "y … "),
        (("demo", "--port", "0"), "--port: expected a whole number of at least 1 and at most 65,535, got '0'"),
        (("demo", "--host", ""), "--host: expected an address, got an empty one"),
        (("demo", "--host", "no.such.host.invalid"), "--host no.such.host.invalid --port 7860: "),
        (("nonsense",), "invalid choice: 'nonsense'"),
        ((), "required: COMMAND; see: elmo-jax --help"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, monkeypatch, capsys, arguments, expected) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("once")
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("elmo-jax: ") and expected in line and len(line) < 1300
    assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "once"


def test_mistakes_before_the_demo(monkeypatch, capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["demo", "--port", port]) == 2
        assert f"--host 127.0.0.1 --port {port}: Address already in use" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["demo", "--port", port]) == 2
    assert capsys.readouterr().err == "elmo-jax: gradio is not installed; run: pip install 'elmo_jax[demo]'\n"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    for model, expected in (("nowhere", "nowhere: no such file or folder; expected the name"), ("", "expected a path")):
        assert main(["demo", model, "--port", port]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"elmo-jax: {expected}")


MEMORY = "RESOURCE_EXHAUSTED: Out of memory allocating 27909734400 bytes."


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            jax.errors.JaxRuntimeError(MEMORY),
            "not enough memory: Out of memory allocating 27909734400 bytes; use smaller",
        ),
        (
            jax.errors.JaxRuntimeError("INTERNAL: Failed to allocate request for 2.0GiB on device ordinal 0\nBuffers:"),
            "not enough memory: INTERNAL: Failed to allocate request for 2.0GiB on device ordinal 0; use smaller",
        ),
        (MemoryError(), "not enough memory: the system has no more; use smaller batches, shorter lines or"),
        (OSError(28, "No space left on device", "runs/x"), "runs/x: No space left on device"),
    ],
)
def test_an_error_of_the_machine_is_no_bug(monkeypatch, capsys, error, expected) -> None:
    monkeypatch.setattr("elmo_jax.cli.settings._settings", Mock(side_effect=error))
    assert main(["settings"]) == exit_status(error) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"elmo-jax: {expected}")


def test_other_errors_have_a_traceback(monkeypatch) -> None:
    for error in (ValueError("a bug"), AssertionError(), jax.errors.JaxRuntimeError("INTERNAL: a bug")):
        monkeypatch.setattr("elmo_jax.cli.settings._settings", Mock(side_effect=error))
        assert exit_status(error) == 1
        with pytest.raises(type(error)):
            main(["settings"])


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        pytest.param(
            {"JAX_PLATFORMS": "cuda"},
            "elmo-jax: JAX_PLATFORMS=cuda: JAX has no such backend here; set it to a platform of this machine",
            marks=pytest.mark.slow,
        ),
        ({"XLA_FLAGS": "--xla_foo=1"}, "elmo-jax: XLA_FLAGS: Unknown flag in XLA_FLAGS: --xla_foo=1; correct it, or"),
        ({"JAX_NUM_CPU_DEVICES": "0"}, "elmo-jax: JAX_NUM_CPU_DEVICES or --xla_force_host_platform_device_count in"),
        (
            {"XLA_FLAGS": "--xla_cpu_enable_fast_math=maybe"},
            "elmo-jax: XLA_FLAGS: Couldn't interpret value maybe for flag",
        ),
    ],
)
def test_a_start_of_jax_that_fails_is_one_line(tmp_path, variables, expected) -> None:
    (tmp_path / "text.txt").write_text("a b\n")
    command = [sys.executable, "-m", "elmo_jax", "embed", "english", "text.txt", "vectors.hdf5"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])} | variables
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and ended.stderr.startswith(expected) and ended.stderr.count("\n") == 1


@pytest.mark.parametrize("content", [b'{"steps": 1', b"", b"[]", b"\xff", b"[" * 99_999])
def test_a_result_that_is_cut_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(UserError, match="result.json: damaged.*; delete it and run the same command again"):
        read_result(epath.Path(tmp_path))
    (tmp_path / "result.json").unlink()
    assert read_result(epath.Path(tmp_path)) is None


def test_a_text_is_no_corpus_and_nothing_is_to_be_deleted(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("the house\n")
    with pytest.raises(UserError, match="big.txt: a file, not a prepared corpus; prepare it: elmo-jax ") as error:
        Corpus.open(tmp_path / "big.txt")
    assert "delete" not in str(error.value)


def test_devices_are_written_to_and_not_replaced(tmp_path: Path) -> None:
    """A file is written next to its place and renamed, which would replace /dev/null by a file."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_text(tmp_path / "pipe", "one\n")
    assert os.read(reader, 100) == b"one\n" and (tmp_path / "pipe").is_fifo()
    os.close(reader)
    (tmp_path / "link").symlink_to("file")
    write_text(tmp_path / "link", "two\n")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "two\n"


@pytest.mark.parametrize("path", ["", "a\0b", "file:///tmp/x"])
def test_paths_that_are_none(path: str) -> None:
    with pytest.raises(UserError) as error:
        parse_path(path)
    assert "\n" not in str(error.value)


def test_a_path_that_the_locale_cannot_express_is_not_called_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsencode", lambda text: text.encode("ascii"))
    for opened in (parse_path, Corpus.open, elmo_jax.load_bilm, elmo_jax.load_task, elmo_jax.VectorShards):
        with pytest.raises(UserError, match=r"'donn\\xe9es': the locale's encoding is .*; set PYTHONUTF8=1"):
            opened("données")


def test_an_output_is_not_one_of_the_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text may be reached by a glob, a folder or ~; a new file next to the texts is allowed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "texts"
    folder.mkdir()
    text = folder / "a.txt"
    text.write_text("a text\n")
    for source in (str(text), str(folder), f"{folder}/*.txt", f"{tmp_path}/**/*.txt", "~/texts/a.txt", "~/texts"):
        with pytest.raises(UserError, match="a.txt is the file of --data .* which would be overwritten"):
            check_distinct({"--json": text}, {}, [source])
        check_distinct({"--json": folder / "new.json"}, {}, [source])
    check_distinct({"--json": folder / "a.txt"}, {"MODEL": folder}, ["sotu", "tfds:lm1b"])


@pytest.mark.parametrize("closed", [pytest.param(">&-", marks=pytest.mark.slow), "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed(tmp_path: Path, closed: str) -> None:
    """Some daemons start programs so; no file that the command opens may take the place of a stream."""
    (tmp_path / "text").write_text("one two three .\n" * 300)
    command = f"exec {sys.executable} -m elmo_jax prepare text --format lines --out corpus --workers 1 {closed}"
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    ended = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert ended.returncode == 0
    assert (tmp_path / "corpus" / "lexicon.tsv").read_text().splitlines()[0].startswith("<S>")


@pytest.mark.parametrize(
    ("name", "value"), [("JAX_NUM_CPU_DEVICES", "two"), ("JAX_DEBUG_NANS", "ja"), ("JAX_DEFAULT_MATMUL_PRECISION", "x")]
)
def test_variables_that_jax_does_not_understand(tmp_path: Path, name: str, value: str) -> None:
    (tmp_path / "text").write_text("one two\n")
    ended = subprocess.run(
        [sys.executable, "-m", "elmo_jax", "embed", "english", "text", "out.hdf5"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.getcwd(), name: value, "JAX_ENABLE_COMPILATION_CACHE": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 2 and line.startswith(f"elmo-jax: {name}={value}: not understood by JAX (")


def test_a_limit_of_virtual_memory_in_which_jax_would_hang() -> None:
    command = f"ulimit -v 2000000; exec {sys.executable} -m elmo_jax evaluate nowhere --data nowhere.txt"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("elmo-jax: the virtual memory of this process is limited to 2.0 GB (ulimit -v)")
