"""Progress of commands: its lines, with and without a terminal, and the size of what is still to be read."""

import gzip
import os
import re
import sys
import termios
import time
from pathlib import Path

import pytest

from elmo_jax.checkpoints.export import export_bilm
from elmo_jax.cli.main import main
from elmo_jax.data.prepare import pieces
from elmo_jax.data.prepare.options import TextOptions
from elmo_jax.data.prepare.pieces import chunks
from elmo_jax.data.prepare.sources import open_sources, size_of
from elmo_jax.data.prepare.text import Errors
from elmo_jax.runs import progress as module
from elmo_jax.runs.progress import Progress, RunProgress, has_live_line
from tests.checkpoints.exports import MODEL, WORDS, tree

pytestmark = pytest.mark.quick


def test_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Progress("embedding", "lines", 400, show=False) as progress:
        now += 75
        assert progress.line() == "embedding … 01:15"
        progress.skip(200)
        progress.add(150)
        assert progress.line() == "embedding: 350 lines (88%) · 2.00 lines/s · 00:25 left"
    with Progress("reading the text", "words", 1000, show=False) as progress:  # bytes
        now += 10
        progress.add(3_000, 250)
        assert progress.line() == "reading the text: 3,000 words (25%) · 300 words/s · 00:30 left"
    with Progress("predicting", "examples", show=False) as progress:
        now += 2
        progress.add(3)
        assert progress.line() == "predicting: 3 examples · 1.50 examples/s"


def shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> str:
    """What is shown on a terminal within the first frame or line."""
    monkeypatch.setattr(module, "_SECONDS_OF_A_LINE", 0.01)
    monkeypatch.setattr(module, "_SECONDS_OF_A_FRAME", 0.01)
    controller, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, columns))
    with open(terminal, "w", encoding="utf-8") as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        assert has_live_line() == (columns > 0)
        shown = b""
        with Progress("waiting", "words", 10) as progress:
            progress.add(5)
            while b"left" not in shown:
                shown += os.read(controller, 1000)
            assert main(["evaluate", "nowhere", "--data", "nothing"]) == 2
            while b"elmo-jax: " not in shown:
                shown += os.read(controller, 1000)
        if not columns:
            run = RunProgress(total=6, done=2)
            run.show("loss 3", 3, 60)
            run.close()
    os.close(controller)
    return shown.decode()


def test_a_terminal_of_unknown_width_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown_on_a_terminal(monkeypatch, 0)
    assert lines.startswith("waiting: 5 words (50%) · ") and "\r" not in lines.replace("\r\n", "")
    assert "\nelmo-jax: " in lines
    assert capsys.readouterr().out == "step 3/6 · loss 3 · 01:00 left\n"
    frame = shown_on_a_terminal(monkeypatch, 80)
    assert frame.startswith("\rwaiting: 5 words (50%) · ") and "\n" not in frame.partition("elmo-jax: ")[0]
    assert re.search(r"\r *\relmo-jax: ", frame)  # the live line is removed first


@pytest.mark.parametrize("names", [("a.txt",), ("a.txt", "b.txt.gz"), ("c.jsonl", "d.jsonl")])
def test_the_bytes_of_the_text_are_known(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        text = '{"text": "some words"}\n' * 9 if "json" in name else "some words , and some more .\n" * 50_000
        (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    sources = open_sources([str(tmp_path)], TextOptions())
    read = [chunk.read for chunk in chunks(sources, Errors.STRICT)]
    assert read == sorted(read) and read[-1] == size_of(sources) > 0


def test_commands_count_all_of_their_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: dict[str, list[tuple[int, int, int]]] = {}

    def close(self: Progress, *_: object) -> None:
        counted.setdefault(self._text, []).append((self._units, self._work, self._total))
        leave(self)

    leave = Progress.__exit__
    monkeypatch.setattr(Progress, "__exit__", close)
    model, text = tmp_path / "bilm", tmp_path / "text.txt"
    export_bilm(model, MODEL, tree(), WORDS)
    text.write_text("a word , and a word\nand a word\n" * 3)
    monkeypatch.setattr(pieces, "CHUNK_BYTES", 20)  # several chunks of one file
    assert main(["evaluate", str(model), "--data", str(text), "--format", "lines", "--batch-size", "2"]) == 0
    assert main(["embed", str(model), str(text), str(tmp_path / "vectors.hdf5")]) == 0
    assert main(["neighbours", str(model), str(text), "--format", "lines", "--word", "and"]) == 0
    assert counted["evaluating"] == [(33, 33, 33)]  # the words and the ends of six sentences
    size = text.stat().st_size
    assert counted["reading the text"] == [(27, size, size)] * 2
    assert counted["embedding"] == [(6, 6, 6), (2, 2, 2), (9, 9, 9)]  # lines; sentences with the word; distinct words
    assert counted["joining the files"] == [(6, 6, 6)] and counted["comparing"] == [(9, 9, 9)]
    assert {f"exporting to {model / 'bilm.safetensors'}", f"reading {model / 'bilm.safetensors'}"} <= set(counted)
