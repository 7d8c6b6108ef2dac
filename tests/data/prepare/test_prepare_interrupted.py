import fcntl
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from etils import epath

from elmo_jax.cli.main import main
from elmo_jax.data.prepare import pieces
from elmo_jax.data.prepare.chunk_files import read_chunk, write_chunk
from elmo_jax.data.prepare.options import PrepareOptions
from elmo_jax.data.prepare.pipeline import prepare
from elmo_jax.data.prepare.text import Chunk, Format, Piece
from elmo_jax.errors import UserError
from elmo_jax.runs.progress import Progress
from tests.end_to_end.commands import Commands, Forked, wait


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Writes forty documents."""
    folder = tmp_path / "documents"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(f"all words of document d{i} , line 0\n" * (i % 3 + 1))
    return folder


# A real process is interrupted at a known place, where it waits: after a number of chunks and shards.

SETTINGS: dict[str, Any] = {"heldout_fraction": 0.2, "progress": False}
NEVER = 0
LINES = {signal.SIGTERM: "elmo-jax: stopped by SIGTERM", signal.SIGINT: "elmo-jax: interrupted"}


def prepare_and_pause(out: str, workers: int, pause_after: int, sources: list[str]) -> int:
    """Runs `prepare` in a new session, with chunks of a tenth of the size, and waits after some of them.

    Of `two_files`, six chunks are read, then counted, and two shards are written.
    """
    os.setsid()
    done, add = 0, Progress.add

    def add_and_pause(self: Progress, *amounts: int) -> None:
        nonlocal done
        add(self, *amounts)
        done += 1
        if done == pause_after:
            Path(out + ".paused").touch()
            while True:  # one long sleep could begin just after a signal, and would not be interrupted
                time.sleep(0.01)

    with mock.patch.object(Progress, "add", add_and_pause), mock.patch.object(pieces, "CHUNK_BYTES", (1 << 20) // 10):
        sys.argv[1:] = ["prepare", *sources, "--out", out, "--workers", str(workers), "--heldout-fraction", "0.2"]
        return main()


@pytest.fixture(scope="module")
def two_files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Writes two files, which give six chunks and about 80 blocks."""
    folder = tmp_path_factory.mktemp("two_files")
    text = "".join(f"line {i} of the text , which goes on and on\n" for i in range(6_000))
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(text)
    return [str(folder / "a.txt"), str(folder / "b.txt")]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, two_files: list[str]) -> dict[str, bytes]:
    """The files of a corpus that was prepared without a stop, in whole chunks."""
    return files(
        prepare(two_files, tmp_path_factory.mktemp("straight") / "out", PrepareOptions(workers=1, **SETTINGS)).path
    )


def start(out: Path, workers: int, pause_after: int, sources: list[str]) -> Forked:
    """Starts a process; returns it once it waits, unless it never does."""
    function = "tests.data.prepare.test_prepare_interrupted:prepare_and_pause"
    process = Commands(out.parent).call(function, str(out), workers, pause_after, sources)
    paused = Path(f"{out}.paused")
    while pause_after and process.poll() is None and not paused.exists():
        time.sleep(0.002)
    paused.unlink(missing_ok=True)
    return process


@pytest.mark.parametrize(
    ("stop", "workers", "pause_after"),
    [
        (signal.SIGKILL, 2, 4),
        pytest.param(signal.SIGKILL, 1, 13, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 2, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 1, 13, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 2, 6, marks=pytest.mark.slow),  # the workers wait for more
        pytest.param(signal.SIGINT, 1, 8, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_process_keeps_its_pieces_and_the_next_one_continues(
    tmp_path: Path, two_files: list[str], straight: dict[str, bytes], stop: int, workers: int, pause_after: int
) -> None:
    out = tmp_path / "base" / "out"
    out.parent.mkdir()
    process = start(out, workers, pause_after, two_files)
    kept = out.parent / ".out.partial.text"
    assert process.poll() is None and any(kept.glob("*.piece"))
    if stop == signal.SIGINT:
        os.killpg(process.pid, stop)  # as a terminal does, which sends it to the workers too
    else:
        process.send_signal(stop)
    ended = wait(process)
    assert ended.status == (-stop if stop == signal.SIGKILL else 128 + stop)
    if stop != signal.SIGKILL:
        printed = "".join(line for line in ended.stderr.splitlines(True) if ": read as lines: " not in line)
        where = rf"kept in {kept}: run the command again to continue, or delete it\n"
        assert re.fullmatch(f"{LINES[stop]}; the work so far is {where}", printed), printed
    left = [kept.name] if stop != signal.SIGKILL else [".out.partial", kept.name]
    assert sorted(p.name for p in out.parent.iterdir()) == left
    pieces = sorted(kept.glob("*.piece"))
    unchanged = {path: path.stat().st_mtime_ns for path in pieces[:-1]}
    pieces[-1].write_bytes(pieces[-1].read_bytes()[:-1])  # as after a loss of power
    again = start(out, workers, 7, two_files)  # after the first reading, which has six chunks
    assert again.poll() is None and {path: path.stat().st_mtime_ns for path in unchanged} == unchanged
    again.kill()
    assert f"{kept}: continues with {len(pieces)} finished pieces of the text\n" in wait(again).stderr
    last = wait(start(out, workers, NEVER, two_files))
    assert last.status == 0 and f"{kept}: continues with 6 finished pieces of the text\n" in last.stderr, last.stderr
    assert [p.name for p in out.parent.iterdir()] == ["out"]
    assert files(out) == straight


def test_a_damaged_piece_is_made_again(tmp_path: Path) -> None:
    """Wherever a bit of it has changed."""
    piece = Piece(b"Some words, and others.\n\nMore of them.\n", "a.txt", 1, starts_document=True)
    chunk, folder = Chunk((piece,), Format.RAW), epath.Path(tmp_path)
    summary, was_there = write_chunk(chunk, folder)
    assert not was_there and write_chunk(chunk, folder) == (summary, True)
    (path,) = tmp_path.iterdir()
    whole, text = path.read_bytes(), read_chunk(folder, chunk.key)
    flipped = [whole[:i] + bytes([whole[i] ^ 64]) + whole[i + 1 :] for i in range(0, len(whole), 3)]
    for content in (b"", bytes(len(whole)), whole[:-1], *flipped):
        path.write_bytes(content)
        assert write_chunk(chunk, folder)[0] == summary
        assert [list(part) for part in read_chunk(folder, chunk.key)] == [list(part) for part in text]


def test_another_text_begins_again_and_another_vocabulary_continues(
    tmp_path: Path, two_files: list[str], straight: dict[str, bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "base" / "out"
    out.parent.mkdir()
    process = start(out, 1, 4, two_files)
    process.kill()
    wait(process)
    with mock.patch.object(pieces, "CHUNK_BYTES", (1 << 20) // 10), pytest.raises(UserError, match="occurs that often"):
        prepare(two_files, out, PrepareOptions(workers=1, heldout_fraction=0.2, min_count=1_000_000))
    assert "continues with 4 finished pieces" in capfd.readouterr().err
    assert not any(out.parent.iterdir())  # after a mistake, nothing is kept
    process = start(out, 1, 4, two_files)
    process.kill()
    wait(process)
    prepare(two_files[:1], out, PrepareOptions(workers=1))
    assert "begins again, since its pieces are of another text or of other settings" in capfd.readouterr().err
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_workers_end_with_their_process(tmp_path: Path, two_files: list[str]) -> None:
    (tmp_path / "base").mkdir()
    process = start(tmp_path / "base" / "out", 2, 3, two_files)
    workers = children(process.pid)
    assert workers
    process.kill()
    wait(process)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def prepare_and_kill_workers(out: str, sources: list[str]) -> int:
    """Runs `prepare` with two workers, which the system kills after the first chunk, as where memory is short."""
    add = Progress.add

    def add_and_kill(self: Progress, *amounts: int) -> None:
        add(self, *amounts)
        for pid in children(os.getpid()):
            os.kill(pid, signal.SIGKILL)

    with mock.patch.object(Progress, "add", add_and_kill), mock.patch.object(pieces, "CHUNK_BYTES", (1 << 20) // 10):
        sys.argv[1:] = ["prepare", *sources, "--out", out, "--workers", "2", "--heldout-fraction", "0.2"]
        return main()


def test_a_worker_that_is_killed_is_one_line(tmp_path: Path, two_files: list[str], straight: dict[str, bytes]) -> None:
    out = tmp_path / "base" / "out"
    out.parent.mkdir()
    function = "tests.data.prepare.test_prepare_interrupted:prepare_and_kill_workers"
    ended = wait(Commands(out.parent).call(function, str(out), two_files))
    assert ended.status == 2
    printed = "a worker process died, perhaps for lack of memory; try --workers 1; the work so far is kept in "
    assert printed in ended.stderr.splitlines()[-1]
    assert [p.name for p in out.parent.iterdir()] == [".out.partial.text"]
    assert files(prepare(two_files, out, PrepareOptions(workers=1, **SETTINGS)).path) == straight


def children(pid: int) -> list[int]:
    """Returns the process ids of the workers of `pid`."""
    actual = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    commands = {int(p): Path(f"/proc/{p}/cmdline").read_bytes() for p in actual}
    return [p for p, command in commands.items() if b"spawn_main" in command]


def test_exception_leaves_nothing(documents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("in the middle")

    monkeypatch.setattr("elmo_jax.data.prepare.write.write_shard", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        prepare([str(documents)], documents.parent / "out", PrepareOptions(progress=False))
    assert sorted(p.name for p in documents.parent.iterdir()) == ["documents"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def prepare_or_complain(source: str, out: str) -> None:
    """Prints the mistake."""
    try:
        prepare([source], out, PrepareOptions(workers=1, progress=False))
    except UserError as error:
        print(error)


def test_a_full_disk_is_one_line_and_the_next_call_continues(documents: Path) -> None:
    out = documents.parent / "out"
    function = "tests.data.prepare.test_prepare_interrupted:prepare_or_complain"
    for limit in (500, 50_000):  # at the spool, and at the blocks
        done = wait(Commands(out.parent).call(function, str(documents), str(out), largest_file=limit))
        assert done.status == 0 and done.stderr == ""
        assert f"{out}: cannot be written" in done.stdout and done.stdout.count("\n") == 1
        assert sorted(p.name for p in documents.parent.iterdir()) == [".out.partial.text", "documents"]
    prepare([str(documents)], out, PrepareOptions(workers=1, progress=False))
    assert sorted(p.name for p in documents.parent.iterdir()) == ["documents", "out"]


def test_two_at_once_are_refused(documents: Path) -> None:
    out = documents.parent / "out"
    partial = documents.parent / ".out.partial"
    partial.mkdir()
    (partial / "text.ids").write_bytes(b"half")
    other = os.open(partial, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="another process is preparing it"):
        prepare([str(documents)], out, PrepareOptions(progress=False))
    assert (partial / "text.ids").exists()
    os.close(other)  # as if that process had died
    assert prepare([str(documents)], out, PrepareOptions(progress=False)).tokens("train") and not partial.exists()
