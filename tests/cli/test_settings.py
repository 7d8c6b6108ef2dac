"""`elmo-jax settings` lists every setting, and tells what a file changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmo_jax.cli.main import main
from elmo_jax.config import Config
from elmo_jax.settings import walk
from elmo_jax.tasks.registry import NAMES, task_config

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    """Runs the command; returns the rest of the line of each key."""
    assert main(["settings", *arguments]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("    ")]
    return dict(line.split(" = ", 1) for line in heads)


def test_every_setting_has_a_line_with_its_default_and_range(capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys)
    assert list(lines) == [key for key, *_ in walk(Config())]
    assert lines["model.lstm.cells"] == "4096  (a number of at least 1 and at most 1,048,576)"
    assert lines["train.carry"] == "'endless'  ('endless' or 'block')"


def test_what_a_file_and_the_command_line_change(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(ROOT / "experiments" / "pretrain_sotu_tiny.py")
    lines = listed(capsys, file, "--config.train.batch_size=16")
    assert lines["model.lstm.cells"].startswith("256  (default 4096; a number of at least 1")
    assert lines["train.batch_size"].startswith("16  (default 384; ")


@pytest.mark.parametrize("task", NAMES)
def test_the_settings_of_a_task(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys, "--task", task)
    assert list(lines) == [key for key, *_ in walk(task_config({"task": task}))]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere.py"], "no such file nowhere.py"),
        (["--task", "parsing"], "config.task: expected 'pos' or 'ner'"),
        (["--config.train.batch_size=-3"], "train.batch_size: expected a number of at least 1, got -3"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", *arguments]) == 2
    error = capsys.readouterr().err
    assert expected in error and error.count("\n") == 1
