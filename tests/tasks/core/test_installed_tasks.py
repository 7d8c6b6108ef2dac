"""A task of another package, which is installed with pip, is trained, evaluated, used and shown as any other."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import elmo_jax
from elmo_jax.demo import views
from elmo_jax.errors import UserError
from tests.end_to_end.commands import Commands
from tests.tasks.core.test_new_tasks import CHUNKS

PACKAGE = Path(__file__).parent / "new_tasks"
TASK = "new_tasks.chunks:TASK"


@dataclasses.dataclass(frozen=True)
class WithPackages(Commands):
    """Commands in an environment that has the packages of one more folder."""

    packages: Path = Path()

    def environment(self, devices: int = 1) -> dict[str, str]:
        return super().environment(devices) | {"PYTHONPATH": str(self.packages)}


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> WithPackages:
    """A folder with a file of chunks and the experiment, and the package, which pip has built and installed."""
    folder = tmp_path_factory.mktemp("chunks")
    shutil.copytree(PACKAGE, folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    pip += ["--disable-pip-version-check", "--no-compile", "--target", str(folder / "packages"), str(folder / "source")]
    done = subprocess.run(pip, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shutil.copy(PACKAGE / "task_chunks.py", folder)
    (folder / "chunks.txt").write_text(CHUNKS)
    return WithPackages(folder, folder / "packages")


@pytest.fixture(scope="module")
def run(commands: WithPackages) -> Path:
    ended = commands.run("task", "train", "--config", "task_chunks.py", "--workdir", "run")
    assert ended.status == 0, ended.stderr
    assert "chunks, accuracy" in ended.stdout and "dev   100.00" in ended.stdout
    return commands.folder / "run"


@pytest.fixture
def importable(commands: WithPackages, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process can import the package during a test."""
    monkeypatch.syspath_prepend(commands.packages)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "new_tasks":
            del sys.modules[name]


def test_it_is_evaluated_and_predicts(commands: WithPackages, run: Path) -> None:
    ended = commands.run("task", "evaluate", run, "--data", "chunks.txt")
    assert (ended.status, ended.stdout) == (0, "accuracy 100.00\n"), ended.stderr
    ended = commands.run("task", "predict", run, "--text", "Old dogs run .")
    assert (ended.status, ended.stdout) == (0, "[NP Old dogs] [VP run] .\n"), ended.stderr


def test_it_is_shown_and_its_settings_are_listed(commands: WithPackages, run: Path, importable: None) -> None:
    trained = elmo_jax.load_task(run)
    assert trained.task.sample == {"Sentence": "Old dogs run ."}
    shown, _ = views.predicted(trained, list(trained.task.sample), "Old dogs run .")
    assert [part for part in shown if part[1]] == [("Old dogs", "NP"), ("run", "VP")]
    listed = commands.inside("settings", "--task", TASK).stdout
    assert f"task = '{TASK}'" in listed and "model.units = 100  (a number of at least 1" in listed
    assert "model.units = 9  (default 100;" in commands.inside("settings", "task_chunks.py").stdout


def test_a_reader_replaces_that_of_the_task(commands: WithPackages, run: Path) -> None:
    (commands.folder / "slashes.txt").write_text("He/B-NP runs/B-VP ./O\nOld/B-NP dogs/I-NP run/B-VP\n")
    files = [f"--config.data.{name}=slashes.txt" for name in ("train", "dev")]
    train = ["task", "train", "--config", "task_chunks.py", "--workdir", "slashes", *files]
    ended = commands.run(*train, "--config.data.reader=new_tasks.slashes:read")
    assert ended.status == 0 and "dev   100.00" in ended.stdout, ended.stderr
    ended = commands.run("task", "evaluate", "slashes", "--data", "slashes.txt")
    assert (ended.status, ended.stdout) == (0, "accuracy 100.00\n"), ended.stderr
    complaint = commands.run("task", "evaluate", "slashes", "--data", "chunks.txt").complaint
    assert "config.data.reader: new_tasks.slashes:read cannot read chunks.txt" in complaint
    assert "slashes.py, line 14: ValueError" in complaint
    complaint = commands.run(*train[:-3], "other", "--config.data.reader=json:loads").complaint
    assert "config.data.reader: json:loads cannot read chunks.txt" in complaint and "TypeError" in complaint


def test_without_the_package_a_run_names_it(commands: WithPackages, run: Path) -> None:
    complaint = Commands(commands.folder).inside("task", "predict", run, "--text", "Old dogs").complaint
    assert "no module 'new_tasks'; install elmo-jax-new-tasks==0.1" in complaint
    versions = json.loads((run / "config.json").read_text())["versions"]
    assert versions["elmo-jax-new-tasks"] == "0.1"


def test_code_in_the_folder_of_a_run_is_not_imported(
    commands: WithPackages, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run from somebody else may have modules, which are on Python's path where its folder is the current one."""
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "new_tasks").mkdir()
    (tmp_path / "run" / "new_tasks" / "__init__.py").touch()
    (tmp_path / "run" / "new_tasks" / "chunks.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.chdir(tmp_path / "run")
    monkeypatch.syspath_prepend("")
    with pytest.raises(UserError, match="'new_tasks.chunks:TASK' is in the run's own folder"):
        elmo_jax.load_task(".")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("no_such_package.tasks:TASK", "no module 'no_such_package'; install the package that has it"),
        ("json.nothing:TASK", "no module 'json.nothing'"),
        ("json:TASK", "the module 'json' has no 'TASK'"),
        ("json:loads", "expected an instance of elmo_jax's class Task, but 'json:loads' is <function loads"),
        ("broken:TASK", "broken.py, line 2: ZeroDivisionError: division by zero"),
        ("exits:TASK", "exits.py, line 1: SystemExit: 3"),
        ("unfinished:TASK", "unfinished.py, line 1: SyntaxError"),
        ("needs_more:TASK", "needs_more.py, line 1: ModuleNotFoundError: No module named 'not_installed'"),
        (":TASK", "expected MODULE:ATTRIBUTE, such as my_package.tasks:TASK, got ':TASK'"),
        ("json:", "expected MODULE:ATTRIBUTE"),
        ("../json:TASK", "expected MODULE:ATTRIBUTE"),
        ("chunks", "expected 'pos' or 'ner'"),
    ],
)
def test_a_name_that_is_no_task_is_one_line(
    spec: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken.py").write_text("zero = 0\nTASK = 1 / zero\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "unfinished.py").write_text("TASK = (\n")
    (tmp_path / "needs_more.py").write_text("import not_installed\n")
    complaint = Commands(tmp_path).inside("settings", "--task", spec).complaint
    assert complaint.startswith("elmo-jax: config.task: ") and expected in complaint
