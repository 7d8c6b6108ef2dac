"""Fixtures of tests with several processes: a corpus, and runs of 1, 2 and 4 processes with 4 devices in total."""

import shutil
import signal
from pathlib import Path

import pytest

from tests.distributed.pods import Commands, Ended, ends, launch, prepared, signalled_when, start
from tests.end_to_end.commands import steps_trained

EVERY_STEP = "--config.train.log_every=1"


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    return prepared(tmp_path_factory.mktemp("distributed"))


@pytest.fixture(scope="session")
def alone(commands: Commands) -> Path:
    """The run of one process with four devices."""
    launch(commands, commands.folder / "alone", 1, 4, EVERY_STEP)
    return commands.folder / "alone"


@pytest.fixture(scope="session")
def two(commands: Commands) -> tuple[Path, list[Ended]]:
    """The run of two processes with two devices each."""
    return commands.folder / "two", launch(commands, commands.folder / "two", 2, 2, EVERY_STEP)


@pytest.fixture(scope="session", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def together(request: pytest.FixtureRequest, commands: Commands) -> tuple[Path, list[Ended]]:
    """The run of two processes, and in the slow tests that of four with one device each."""
    if request.param == 2:
        return request.getfixturevalue("two")
    return commands.folder / "four", launch(commands, commands.folder / "four", 4, 1, EVERY_STEP)


@pytest.fixture(scope="session")
def stopped(commands: Commands) -> tuple[Path, list[Ended]]:
    """The run of two processes, ended by SIGTERM to process 1 between step 8 and the end; saved by time."""
    run = commands.folder / "stopped"
    for _ in range(5):  # it may be complete before the signal arrives
        shutil.rmtree(run, ignore_errors=True)
        by_time = ("--config.checkpoint.every=1000", "--config.checkpoint.minutes=1e-9")
        launched = start(commands, run, 2, 2, EVERY_STEP, *by_time)
        signalled_when(launched, [1], signal.SIGTERM, lambda: steps_trained(run) >= 8)
        ended = ends(launched)
        if not (run / "result.json").exists():
            break
    return run, ended
