"""A checkpoint of which one process cannot write its part."""

import argparse
import signal
import socket
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.cli.options import add_process_options
from elmo_jax.distributed.initialize import connected
from elmo_jax.distributed.mesh import ROWS, make_mesh, to_devices
from elmo_jax.errors import TRY_AGAIN
from tests.distributed.pods import ends, free_port, last_words
from tests.end_to_end.commands import Commands, Ended

LARGEST_FILE = 10_240  # in bytes, less than the part of one process


def save_one(folder: str, flags: list[str], barrier_ms: int) -> None:
    """Saves a state together with another process.

    `barrier_ms` is the time after which Orbax's barriers give up, unless it is 0.
    """
    parser = argparse.ArgumentParser()
    add_process_options(parser)
    options = parser.parse_args(flags)
    with connected(options.coordinator, options.processes, options.process, options.heartbeat):
        if barrier_ms:
            wait = ocp.multihost.get_barrier_sync_fn()
            ocp.multihost.get_barrier_sync_fn = lambda: lambda *, key, timeout_ms: wait(key=key, timeout_ms=barrier_ms)
        mesh = make_mesh()
        numbers = np.random.default_rng(0).normal(size=(1, 1 << 15))
        checkpoints = Checkpoints(folder)
        checkpoints.save(1, {"carry": to_devices(numbers, ROWS, mesh)})
        checkpoints.wait()
        print("saved")


def save(folder: Path, full: bool = False, heartbeat: int = 10, barrier_ms: int = 0) -> list[Ended]:
    """Returns how two processes end that save one state; the disk of process 1 may be full."""
    flags = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--heartbeat", str(heartbeat)]
    return ends(
        [
            Commands(folder.parent).call(
                "tests.distributed.test_saves:save_one",
                *(str(folder), [*flags, "--process", str(index)], barrier_ms),
                largest_file=LARGEST_FILE if full and index else None,
            )
            for index in range(2)
        ]
    )


@pytest.mark.slow
def test_full_disk_of_one_ends_all(tmp_path: Path) -> None:
    """The other waits for it to have written its part, and would wait for ten minutes: JAX's heartbeat ends it.

    Either JAX aborts it, or the barrier fails a moment earlier.
    """
    first, second = save(tmp_path / "checkpoints", full=True)
    assert first.status in (-signal.SIGABRT, TRY_AGAIN) and second.status == 2, (first.stderr, second.stderr)
    assert f"process 1 on {socket.gethostname()}: " in last_words(second)
    assert "step 1 could not be saved: File too large; there is no earlier checkpoint" in last_words(second)
    assert "Traceback" not in second.stderr and "heartbeat" in first.stderr
    assert "saved\n" not in first.stdout + second.stdout
    assert not (tmp_path / "checkpoints" / "1").exists()


@pytest.mark.slow
def test_failed_barrier_asks_for_another_launch(tmp_path: Path) -> None:
    """A process whose barrier fails lacks the part of the other one: a launcher must not take that for a mistake."""
    first, _ = save(tmp_path / "checkpoints", full=True, heartbeat=120, barrier_ms=2000)
    assert first.status == TRY_AGAIN, first.stderr
    assert "another process has not written its part of a checkpoint" in last_words(first)
    assert "the same launch resumes from the last checkpoint" in last_words(first)
    assert "Traceback" not in first.stderr
    assert not (tmp_path / "checkpoints" / "1").exists()


@pytest.mark.slow
def test_both_write(tmp_path: Path) -> None:
    """Both processes write their part if no disk is full."""
    ended = save(tmp_path / "checkpoints")
    assert [e.status for e in ended] == [0, 0], [e.stderr for e in ended]
    assert (tmp_path / "checkpoints" / "1" / "manifest.json").exists()
