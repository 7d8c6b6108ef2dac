import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elmo_jax.data.prepare.pipeline import prepare
from elmo_jax.errors import UserError


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


# A real process is interrupted at a known place, where it waits: after a number of chunks and blocks.

RUN = """
import sys, time
from pathlib import Path
from elmo_jax.data.prepare import pipeline as module, progress
out, workers, pause_after, *sources = sys.argv[1:]
done, add = 0, progress.Progress.add
def add_and_pause(self, words):
    global done
    add(self, words)
    done += 1
    if done == int(pause_after):
        Path(out + ".paused").touch()
        while True:  # one long sleep could begin just after a signal, and would not be interrupted
            time.sleep(0.01)
progress.Progress.add = add_and_pause
if __name__ == "__main__":
    module.prepare(sources, out, workers=int(workers), heldout_fraction=0.2)
"""
NEVER = 0


@pytest.fixture
def two_files(tmp_path: Path) -> list[str]:
    """Writes six megabytes in two files, which give six chunks and about 800 blocks."""
    text = "".join(f"line {i} of the text , which goes on and on\n" for i in range(60_000))
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(text)
    return [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]


def start(out: Path, workers: int, pause_after: int, sources: list[str]) -> subprocess.Popen[bytes]:
    (out.parent.parent / "run.py").write_text(RUN)
    command = [sys.executable, str(out.parent.parent / "run.py"), str(out), str(workers), str(pause_after)]
    with (out.parent.parent / "errors.txt").open("wb") as errors:
        process = subprocess.Popen([*command, *sources], stderr=errors, start_new_session=True)
    paused = Path(f"{out}.paused")
    while pause_after and process.poll() is None and not paused.exists():
        time.sleep(0.001)
    paused.unlink(missing_ok=True)
    return process


@pytest.mark.parametrize(
    ("stop", "workers", "pause_after"),
    [
        (signal.SIGKILL, 1, 2),
        (signal.SIGKILL, 2, 4),
        (signal.SIGKILL, 2, 300),
        (signal.SIGTERM, 2, 2),
        (signal.SIGTERM, 1, 500),
        (signal.SIGINT, 2, 6),  # the workers wait for more
        (signal.SIGINT, 1, 8),
    ],
)
def test_stopped_process_leaves_nothing_and_can_be_repeated(
    tmp_path: Path, two_files: list[str], stop: int, workers: int, pause_after: int
) -> None:
    out = tmp_path / "base" / "out"
    out.parent.mkdir()
    process = start(out, workers, pause_after, two_files)
    assert process.poll() is None and (out.parent / ".out.partial" / "text.ids").exists()
    if stop == signal.SIGINT:
        os.killpg(process.pid, stop)  # as a terminal does, which sends it to the workers too
    else:
        process.send_signal(stop)
    assert process.wait(timeout=300) != 0
    assert (tmp_path / "errors.txt").read_text().count("Traceback") == (stop == signal.SIGINT)
    left = [] if stop != signal.SIGKILL else [".out.partial"]
    assert [p.name for p in out.parent.iterdir()] == left
    assert start(out, workers, NEVER, two_files).wait(timeout=300) == 0
    assert [p.name for p in out.parent.iterdir()] == ["out"]
    settings = {"heldout_fraction": 0.2, "progress": False, "workers": 1}
    straight = prepare(two_files, tmp_path / "straight", **settings)  # type: ignore[arg-type]
    assert files(out) == files(straight.path)


def test_workers_end_with_their_process(tmp_path: Path, two_files: list[str]) -> None:
    (tmp_path / "base").mkdir()
    process = start(tmp_path / "base" / "out", 2, 3, two_files)
    workers = children(process.pid)
    assert workers
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def children(pid: int) -> list[int]:
    """Returns the process ids of the workers of `pid`."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    commands = {int(p): Path(f"/proc/{p}/cmdline").read_bytes() for p in found}
    return [p for p, command in commands.items() if b"spawn_main" in command]


def test_exception_leaves_nothing(documents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("in the middle")

    monkeypatch.setattr("elmo_jax.data.prepare.write.write_blocks", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        prepare([str(documents)], documents.parent / "out", progress=False)
    assert sorted(p.name for p in documents.parent.iterdir()) == ["documents"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_full_disk_is_one_line_and_leaves_nothing(documents: Path) -> None:
    code = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
from elmo_jax.data.prepare.pipeline import prepare
from elmo_jax.errors import UserError
try:
    prepare([sys.argv[1]], sys.argv[2], workers=1, progress=False)
except UserError as error:
    print(error)
"""
    out = documents.parent / "out"
    for limit in (500, 50_000):  # at the spool, and at the blocks
        arguments = [str(documents), str(out), str(limit)]
        done = subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True)
        assert f"{out}: cannot be written" in done.stdout and done.stdout.count("\n") == 1
        assert sorted(p.name for p in documents.parent.iterdir()) == ["documents"]


def test_two_at_once_are_refused(documents: Path) -> None:
    out = documents.parent / "out"
    partial = documents.parent / ".out.partial"
    partial.mkdir()
    (partial / "text.ids").write_bytes(b"half")
    other = os.open(partial, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="another process is preparing it"):
        prepare([str(documents)], out, progress=False)
    assert (partial / "text.ids").exists()
    os.close(other)  # as if that process had died
    assert prepare([str(documents)], out, progress=False).tokens("train") and not partial.exists()
