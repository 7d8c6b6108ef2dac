"""The corpus that Apache Beam prepares is that of the local run, byte for byte; skipped without `elmo_jax[beam]`.

The runner is Beam's own for tests and single machines: its default runner downloads a program.
"""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo_jax.data import blocks
from elmo_jax.data.prepare import pieces
from elmo_jax.files import atomic_folder
from tests.data.prepare.corpora import files, make, refusal

pytest.importorskip("apache_beam", reason="needs Apache Beam: pip install 'elmo_jax[beam]', as make test-slow does")

IN_MEMORY = "--runner=FnApiRunner"
TWO_PROCESSES = "--runner=FnApiRunner --direct_running_mode=multi_processing --direct_num_workers=2"


def running_text(rng: np.random.Generator, paragraphs: int) -> list[str]:
    """Returns paragraphs of one to five sentences, of words with a Zipf distribution, some of them not ASCII."""
    words = [f"w{i}é{i % 7}" if i % 5 == 0 else f"word{i}" for i in range(5000)]
    made = []
    for _ in range(paragraphs):
        sentences = [rng.zipf(1.3, rng.integers(4, 20)).clip(1, 5000) - 1 for _ in range(rng.integers(1, 6))]
        made.append(" ".join(" ".join(words[i] for i in sentence).capitalize() + "." for sentence in sentences))
    return made


def write_sources(folder: Path, size: int) -> dict[str, str]:
    """Writes sources of every format; the text of each has about `size` paragraphs."""
    import pyarrow
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    folder.mkdir()
    texts = {name: running_text(rng, size) for name in ("raw", "more", "documents", "lines", "jsonl", "parquet", "gz")}
    (folder / "raw.txt").write_text("\n\n".join(texts["raw"]))
    (folder / "more.txt").write_text("\n\n".join(texts["more"][: size // 9]))
    (folder / "documents.txt").write_text(
        "\n".join(f"{text}{chr(10) * (i % 3 == 0)}" for i, text in enumerate(texts["documents"]))
    )
    (folder / "tokenized.txt").write_text("\n".join(text.replace(".", " .") for text in texts["lines"]))
    (folder / "records.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts["jsonl"]))
    parquet.write_table(pyarrow.table({"text": pyarrow.array(texts["parquet"])}), folder / "records.parquet")
    (folder / "packed.txt.gz").write_bytes(gzip.compress("\n\n".join(texts["gz"]).encode(), 1))
    (folder / "many").mkdir()
    for i in range(20):
        (folder / "many" / f"{i:02}.txt").write_text("\n\n".join(texts["raw"][i : 2 * i]))
    (folder / "vocabulary.txt").write_text("</S>\n<S>\nabsent\nword7\n<UNK>\nword2\n")
    return {path.name.partition(".")[0]: str(path) for path in folder.iterdir()}


def cases(source: dict[str, str]) -> dict[str, tuple[list[str], dict[str, Any]]]:
    raw, more, many = source["raw"], source["more"], source["many"]
    records = [source["tokenized"], f"{Path(raw).parent}/*.jsonl", f"{Path(raw).parent}/*.parquet"]
    return {
        "formats": ([raw, more, many, source["documents"], source["packed"], *records], {"heldout_fraction": 0.1}),
        "named": ([f"a={raw}", f"b={many}", f"a={records[0]}", more], {"vocabulary_size": 100, "errors": "replace"}),
        "heldout": ([many, raw], {"heldout_sources": [f"x={more}"], "base_vocabulary_file": source["vocabulary"]}),
        "evaluated": ([many], {"heldout_fraction": 1, "vocabulary_file": source["vocabulary"]}),
    }


@pytest.mark.parametrize("case", ["named", "heldout", "evaluated"])
def test_small_chunks_buckets_and_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(pieces, "CHUNK_BYTES", 2000)
    monkeypatch.setattr(blocks, "SHARD_TOKENS", 3000)
    sources, settings = cases(write_sources(tmp_path / "text", 300))[case]
    local = make(tmp_path / "local", *sources, **settings)
    beam = make(tmp_path / "beam", *sources, beam=IN_MEMORY, workers=None, **settings)
    assert len(list((local.path / "blocks").glob("*.array_record*"))) > 1 and local.tokens("heldout")
    assert files(beam.path) == files(local.path)
    make(tmp_path / "beam", *sources, beam=IN_MEMORY, workers=None, **settings)  # does nothing
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beam", "local", "text"]


def test_mistakes_in_the_text_are_those_of_the_local_run(tmp_path: Path) -> None:
    (tmp_path / "latin1.txt").write_bytes(b"A line.\n\nA caf\xe9.\n")
    (tmp_path / "broken.jsonl").write_text('{"text": "A text."}\n{"text": \n')
    (tmp_path / "chinese.txt").write_text("这是一个没有空格的句子，它很长很长。\n" * 20)
    (tmp_path / "empty.txt").write_text("\n\n")
    for path in sorted(tmp_path.iterdir()):
        expected = refusal(tmp_path / "out", path)
        assert refusal(tmp_path / "out", path, beam=IN_MEMORY, workers=None) == expected
        assert not (tmp_path / "out").exists()
    assert "workers and pipeline options" in refusal(tmp_path / "out", path, beam=IN_MEMORY)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--runner=NoRunner", "--runner=NoRunner: the pipeline failed: "),
        ("--runner=FnApiRunner '", "No closing quotation"),
        ("FnApiRunner", "names no runner"),
        ("--runner=FnApiRunner --direct_num_workers=two", "argument --direct_num_workers: invalid int value: 'two'"),
    ],
)
def test_wrong_options_of_beam(tmp_path: Path, capfd: pytest.CaptureFixture[str], options: str, expected: str) -> None:
    (tmp_path / "text.txt").write_text("A text.\n\nAnother text.\n")
    assert expected in refusal(tmp_path / "out", tmp_path / "text.txt", beam=options, workers=None)
    assert "usage" not in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_second_launch_is_refused_before_it_works(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("A text.\n\nAnother text.\n")
    with atomic_folder(tmp_path / "out"):
        refused = refusal(tmp_path / "out", tmp_path / "text.txt", beam="--runner=NoRunner", workers=None)
    assert "another process is preparing it" in refused


@pytest.mark.slow
@pytest.mark.parametrize("case", ["formats", "named", "heldout", "evaluated"])
def test_two_processes_make_the_local_corpus(tmp_path: Path, case: str) -> None:
    sources, settings = cases(write_sources(tmp_path / "text", 9000))[case]
    local = make(tmp_path / "local", *sources, **settings)
    beam = make(tmp_path / "beam", *sources, beam=TWO_PROCESSES, workers=None, **settings)
    assert files(beam.path) == files(local.path)


def command(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "elmo_jax", "prepare", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def beam_workers(pid: int) -> list[int]:
    """Returns the process ids of Beam's workers below a process, each started by a shell."""
    children = [
        int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
    ]
    if not children:
        return [pid] if b"sdk_worker_main" in Path(f"/proc/{pid}/cmdline").read_bytes() else []
    return [worker for child in children for worker in beam_workers(child)]


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["workers", "command"])
def test_after_a_kill_the_next_command_continues(tmp_path: Path, killed: str) -> None:
    text = write_sources(tmp_path / "text", 20_000)["raw"]
    out, kept = tmp_path / "out", tmp_path / ".out.partial.text"
    arguments = [text, "--out", str(out), "--format", "raw", "--beam", TWO_PROCESSES]
    process = command(*arguments)
    while process.poll() is None and len(list(kept.glob("*.piece"))) < 2:
        time.sleep(0.01)
    workers = beam_workers(process.pid)
    assert process.poll() is None and workers
    for pid in workers if killed == "workers" else [process.pid]:
        os.kill(pid, signal.SIGKILL)
    _, printed = process.communicate(timeout=120)
    if killed == "workers":
        assert process.returncode == 2 and not out.exists()
        assert "the pipeline failed: " in printed.splitlines()[-1] and f"kept in {kept}" in printed.splitlines()[-1]
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    again = command(*arguments)
    _, printed = again.communicate(timeout=300)
    assert again.returncode == 0 and f"{kept}: continues with " in printed
    assert files(out) == files(make(tmp_path / "local", text, format="raw").path)
    assert not kept.exists()
