"""Every task from its files to its predictions: it learns twenty examples, is loaded, and does not see padding."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath
from numpy.testing import assert_allclose

import elmo_jax
from elmo_jax.cli.main import main
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.runs.result import Finished
from elmo_jax.tasks.core.data import CPU, Batch, TaskData, choose_shapes
from elmo_jax.tasks.core.inputs import TextEncoder, embedded
from elmo_jax.tasks.core.run import train_task
from elmo_jax.tasks.core.trained_task import TrainedTask
from elmo_jax.tasks.formats.sources import read_part
from elmo_jax.tasks.registry import NAMES
from tests.tasks.problems import NUMBER, PROBLEMS, config_of
from tests.tasks.tagging import write_problem

WITH_ELMO = ("ner",)  # at the input and the output; the others have word vectors only


@pytest.fixture(scope="module")
def bilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bilm")
    write_problem(folder)
    return folder / "bilm"


@pytest.mark.parametrize(  # test_training.py trains `pos`
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "pos" else name for name in NAMES]
)
def test_a_task(
    name: str,
    bilm: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    problem = PROBLEMS[name]()
    elmo = (f"bilm={bilm}", "elmo.where=both") if name in WITH_ELMO else ()
    config = config_of(name, problem, tmp_path, *elmo)
    ended = train_task(config, epath.Path(tmp_path / "run"), name)
    assert isinstance(ended, Finished)
    (seed,) = ended.result["seeds"]
    metric = ended.result["metric"]
    assert list(seed["dev"])[0] == metric
    assert first_score(tmp_path / "run", metric) < 80 < 95 <= seed["dev"][metric]
    trained = elmo_jax.load_task(tmp_path / "run")
    task = trained.task
    examples = read_part(task, config, "dev")
    assert len(examples) == NUMBER
    assert_predictions_are_those_written(problem, trained, examples, tmp_path / "run" / "seed_0" / "dev.predictions")
    assert trained.evaluate(str(tmp_path / problem.file)) == pytest.approx(seed["dev"])
    assert_padding_changes_nothing(trained, examples)
    if name == "srl":
        assert_sentences_without_a_predicate_are_counted(tmp_path / "run", capsys)


def first_score(run: Path, metric: str) -> float:
    """The metric before the first step."""
    first = json.loads((run / "seed_0" / "metrics.jsonl").read_text().split("\n")[0])
    assert first["step"] == 0
    return float(first[f"dev/{metric}"])


def assert_predictions_are_those_written(problem: Any, trained: TrainedTask, examples: list[Any], path: Path) -> None:
    """Compares what a user gets for the words of the examples with the file that the training wrote."""
    inputs = []
    for example in examples:
        task = trained.task
        texts = task.texts(example)
        rows = tuple(text if task.document_level else text[0] for text in texts)
        actual = rows if len(rows) > 1 else rows[0]
        if actual not in inputs:  # of a sentence with two predicates there are two examples, and two predictions
            inputs.append(actual)
    predictions = trained.predict(inputs)
    if trained.task.texts_per_example == 1:
        assert trained.predict([(item,) for item in inputs]) == predictions
    assert [problem.said(prediction) for prediction in predictions] == problem.written(path)
    assert len(list(trained.pairs(inputs))) == len(predictions) == NUMBER


def assert_sentences_without_a_predicate_are_counted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["task", "predict", str(run), "--text", "Ada wants to paint . Hello there ."]) == 0
    shown = capsys.readouterr()
    assert [line.split(":")[0] for line in shown.out.splitlines()] == ["wants", "paint"]
    assert "1 of 2 sentences have no word that is a predicate in the training text" in shown.err


def assert_padding_changes_nothing(trained: TrainedTask, examples: list[Any]) -> None:
    """Compares the shortest example alone with the same example in a large batch of the shape of the longest."""
    sizes = [trained.task.size(example) for example in examples]
    short = min(range(NUMBER), key=lambda i: sizes[i])
    (shape,) = choose_shapes(sizes, 1, CPU)
    positions = trained.config.train.batch_size
    setups = {
        size: dataclasses.replace(
            trained._setup,
            config=dataclasses.replace(
                trained.config, train=dataclasses.replace(trained.config.train, batch_size=size)
            ),
            mesh=make_mesh(jax.devices()[:1]),
        )
        for size in (1, positions)
    }
    bilm, elmo = trained._setup.bilm, trained._setup.config.elmo
    encoder = TextEncoder(trained._setup, bilm and functools.partial(embedded, bilm, elmo))
    assert shape != sizes[short]
    (params, frozen), *_ = trained._models
    # learned losses are small differences of large numbers, so the weights are made smaller
    params = trained._program.replicated(jax.tree.map(lambda x: np.float32(0.3) * np.asarray(x), params))
    actual = []
    for number, padded_to in ((1, sizes[short]), (positions, shape)):
        data = TaskData(setups[number], encoder, examples, [shape])
        batch = trained._program.device_put(data.arrays(Batch((short,), padded_to)))
        actual.append(jax.device_get(trained._program.evaluate(params, batch, frozen)))
    (loss, alone), (padded, others) = actual
    assert_allclose(padded, loss, rtol=1e-5)
    for name, array in alone.items():
        inside = others[name][(0, *map(slice, array.shape[1:]))]
        assert_allclose(inside, array[0], rtol=1e-5, atol=1e-5, err_msg=name)
