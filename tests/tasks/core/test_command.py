"""Tests `elmo-jax task`: a training that is killed and resumed, evaluation, and predictions for typed text."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.commands import Commands, saved_arrays, stopped_when, wait
from tests.tasks.tagging import overrides, write_problem

SETTINGS = ("seeds=(0,4)", "train.epochs=6", "bilm=problem/bilm", "elmo.where=both")
EXPERIMENT = '''\
"""A tagger that is trained in seconds."""

from elmo_jax.tasks.registry import default_config


def get_config():
    return default_config("pos")
'''


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    folder = tmp_path_factory.mktemp("tagger")
    (folder / "problem").mkdir()
    write_problem(folder / "problem")
    (folder / "task_tagger.py").write_text(EXPERIMENT)
    return Commands(folder)


def arguments(commands: Commands, run: str) -> list[str]:
    settings = overrides(commands.folder / "problem", *SETTINGS)
    return ["task", "train", "--config", "task_tagger.py", "--workdir", run, *settings]


@pytest.fixture(scope="module")
def trained(tagger: Commands) -> Path:
    ended = tagger.run(*arguments(tagger, "whole"))
    assert ended.status == 0, ended.stderr
    assert "pos, accuracy" in ended.stdout and "(n = 2)" in ended.stdout and "seed 4: dev" in ended.stdout
    return tagger.folder / "whole"


def numbers(run: Path) -> Any:
    """Returns the result of a run without what depends on the clock."""
    result = json.loads((run / "result.json").read_text())
    del result["sha256"]
    for seed in result["seeds"]:
        for key in ("seconds", "words_per_second"):
            del seed[key]
    return result


def evaluations(run: Path, seed: int) -> int:
    metrics = run / f"seed_{seed}" / "metrics.jsonl"
    return metrics.read_text().count("dev/accuracy") if metrics.exists() else 0


def test_killed_stopped_and_resumed(tagger: Commands, trained: Path) -> None:
    """Killed in the first training and stopped in the second, it ends with the same numbers and parameters."""
    run = tagger.folder / "killed"
    process = tagger.start(*arguments(tagger, "killed"))
    stopped_when(process, lambda: evaluations(run, 0) >= 2, signal.SIGKILL)
    assert wait(process).status == -signal.SIGKILL
    process = tagger.start(*arguments(tagger, "killed"))
    stopped_when(process, lambda: evaluations(run, 4) >= 2, signal.SIGTERM)
    ended = wait(process)
    assert ended.status == 128 + signal.SIGTERM and "run the same command to resume" in ended.stdout
    ended = tagger.run(*arguments(tagger, "killed"))
    assert ended.status == 0, ended.stderr
    assert numbers(run) == numbers(trained)
    for seed in (0, 4):
        step = numbers(run)["seeds"][seed == 4]["step"]
        one, other = (saved_arrays(folder / f"seed_{seed}", step) for folder in (run, trained))
        assert one.keys() == other.keys() and all((one[key] == other[key]).all() for key in one)


def test_a_run_of_other_settings_is_refused(tagger: Commands, trained: Path) -> None:
    before = (trained / "result.json").read_bytes()
    complaint = tagger.inside(*arguments(tagger, "whole"), "--config.train.epochs=41").complaint
    assert "train.epochs" in complaint and (trained / "result.json").read_bytes() == before


def test_evaluate_prints_the_metrics_of_the_training(tagger: Commands, trained: Path) -> None:
    data = tagger.folder / "named.conllu"
    blocks = (tagger.folder / "problem" / "test.conllu").read_text().strip().split("\n\n")
    data.write_text("".join(f"# sent_id = s{n}\n{block}\n\n" for n, block in enumerate(blocks)))
    options = ("--json", "metrics.json", "--predictions", "predictions.jsonl")
    ended = tagger.inside("task", "evaluate", "whole", "--data", "named.conllu", *options)
    assert ended.status == 0, ended.stderr
    predictions = [json.loads(line) for line in (tagger.folder / "predictions.jsonl").read_text().splitlines()]
    assert [item["id"] for item in predictions] == [f"s{n}" for n in range(len(blocks))]
    again = tagger.inside("task", "predict", "whole", "--input", "named.conllu", "--output", "json")
    assert [json.loads(line) for line in again.stdout.splitlines()] == predictions
    expected = numbers(trained)["seeds"][0]["test"]
    assert json.loads((tagger.folder / "metrics.json").read_text()) == pytest.approx(expected)


def test_predict_for_typed_text(tagger: Commands, trained: Path) -> None:
    ended = tagger.run("task", "predict", "whole", "--text", "The old dog sees a tree. Some idea is green!")
    assert ended.status == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert len(lines) == 2 and lines[0].startswith("The/") and lines[1].split()[-1].startswith("!/")
    as_json = tagger.inside("task", "predict", "whole", "--text", "Silent trees", "--output", "json")
    (line,) = as_json.stdout.splitlines()
    assert json.loads(line)["tokens"] == ["Silent", "trees"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("predict", "nowhere", "--text", "a"), "nowhere"),
        (("predict", "problem", "--text", "a"), "problem"),
        (("predict", "whole", "--input", "nowhere.txt"), "nowhere.txt"),
        (("predict", "whole", "--text", "a", "--seed", "9"), "seed 9 has not finished training"),
        (("evaluate", "whole", "--data", "task_tagger.py"), "task_tagger.py, line 1"),
    ],
)
def test_a_mistake_is_one_line(tagger: Commands, trained: Path, more: tuple[str, ...], expected: str) -> None:
    assert expected in tagger.inside("task", *more).complaint
