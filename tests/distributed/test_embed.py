"""`embed` in two processes of two devices each: killed, launched again, the same file as one process writes."""

from __future__ import annotations

import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.distributed.pods import HEARTBEAT_SECONDS, ends, free_port
from tests.end_to_end.commands import Commands, Forked, stopped_when
from tests.tasks.tagging import write_problem

LINES = 4500  # five windows


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    folder = tmp_path_factory.mktemp("embed")
    write_problem(folder)
    random = np.random.default_rng(0)
    words = np.array(["one", "two", "naïve", "Ω", "five-and-twenty"])
    lines = [" ".join(words[random.integers(5, size=size)]) for size in random.integers(0, 4, LINES)]
    (folder / "sentences.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Commands(folder)


def launch(
    commands: Commands,
    texts: tuple[str, str] = ("sentences.txt", "sentences.txt"),
    outs: tuple[str, str] = ("two.hdf5", "two.hdf5"),
) -> list[Forked]:
    """Starts two processes, which may be given other texts and outputs each."""
    coordinator = f"127.0.0.1:{free_port()}"
    return [
        commands.start(
            *("embed", "bilm", texts[process], outs[process], "--heartbeat", HEARTBEAT_SECONDS),
            *("--coordinator", coordinator, "--processes", "2", "--process", str(process)),
            devices=2,
        )
        for process in range(2)
    ]


def vectors(path: Path) -> list[np.ndarray]:
    with h5py.File(path) as file:
        assert len(file) == LINES
        return [file[str(number)][()] for number in range(LINES)]


@pytest.mark.slow
def test_two_processes_write_the_file_of_one(commands: Commands) -> None:
    parts = commands.folder / "two.hdf5.parts"
    first, second = launch(commands)
    stopped_when(second, lambda: len(list(parts.glob("0*.npy"))) >= 1, signal.SIGKILL)
    assert all(ended.status != 0 for ended in ends([first, second]))
    assert parts.is_dir() and not (commands.folder / "two.hdf5").exists()
    done = ends(launch(commands))
    assert [ended.status for ended in done] == [0, 0], [ended.stderr for ended in done]
    assert f"{LINES:,} lines to two.hdf5" in done[0].stdout
    assert "lines to" not in done[1].stdout and not parts.exists()
    alone = commands.run("embed", "bilm", "sentences.txt", "one.hdf5")
    assert alone.status == 0, alone.stderr
    for actual, expected in zip(*(vectors(commands.folder / name) for name in ("two.hdf5", "one.hdf5")), strict=True):
        assert_allclose(actual, expected, atol=1e-5)
    again = ends(launch(commands))
    assert [ended.status for ended in again] == [0, 0]


def test_processes_that_differ_end_with_a_message(commands: Commands) -> None:
    (commands.folder / "two.hdf5").unlink(missing_ok=True)
    text = (commands.folder / "sentences.txt").read_text(encoding="utf-8")
    (commands.folder / "other.txt").write_text(text.replace("one", "two"), encoding="utf-8")
    first, second = ends(launch(commands, ("sentences.txt", "other.txt")))
    assert [first.status, second.status] == [2, 2]
    expected = "process 1 has a model, sentences or settings that differ from those of process 0; give all the same"
    assert expected in first.stderr and expected in second.stderr
    assert not (commands.folder / "two.hdf5.parts").exists()
    first, second = ends(launch(commands, ("sentences.txt", "absent.txt")))
    assert [first.status, second.status] == [2, 2] and "absent.txt: cannot be read" in second.stderr


@pytest.mark.slow
def test_folders_that_are_not_shared(commands: Commands) -> None:
    """Process 1 sees parts of an earlier launch, and not those of process 0; later, it alone sees the output."""
    elsewhere = commands.folder / "elsewhere"
    parts = elsewhere / "two.hdf5.parts"
    parts.mkdir(parents=True)
    (parts / ".job.json.0123abcd.tmp").write_text("{}")
    outs = "new.hdf5", "elsewhere/two.hdf5"
    first, second = ends(launch(commands, outs=outs))
    assert [first.status, second.status] == [2, 2]
    assert "is not the folder that process 0 writes into" in second.stderr
    assert not list(commands.folder.glob("new.hdf5.parts/*.npy")), "vectors were computed before the mistake was told"
    done = commands.run("embed", "bilm", "sentences.txt", "elsewhere/two.hdf5")
    assert done.status == 0, done.stderr
    first, second = ends(launch(commands, outs=outs))
    assert [first.status, second.status] == [2, 2]
    assert "is not the folder that process 0 writes into" in second.stderr
