"""Tests the trainer of all tasks: the same numbers on any number of devices and for any source of ELMo's layers."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath

import elmo_jax
from elmo_jax.cli.main import main
from elmo_jax.config import Config
from elmo_jax.config_file import with_overrides
from elmo_jax.errors import UserError
from elmo_jax.files import write_checksummed_json
from elmo_jax.runs.folder import covered_by_seal, open_workdir, read_config_file
from elmo_jax.runs.result import Finished, read_result
from elmo_jax.tasks.core import data
from elmo_jax.tasks.core.data import TaskData
from elmo_jax.tasks.core.run import train_task
from elmo_jax.tasks.core.setup import training_share
from elmo_jax.tasks.core.trainer import Trainer
from elmo_jax.tasks.registry import default_config, task_config
from tests.tasks.tagging import curve, overrides, train, write_problem

WITH_ELMO = ("elmo.where=both", "elmo.dtype=float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("problem")
    write_problem(folder)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """A run with ELMo and two seeds, on one device."""
    train(folder, folder / "run", f"bilm={folder / 'bilm'}", *WITH_ELMO, "seeds=(0,4)")
    return folder / "run"


@pytest.fixture(scope="module")
def loaded(run: Path) -> elmo_jax.TrainedTask:
    return elmo_jax.load_task(run)


@pytest.fixture(scope="module")
def result(run: Path) -> dict[str, Any]:
    actual = read_result(epath.Path(run))
    assert actual is not None
    return actual


def test_it_learns_what_words_determine(result: dict[str, Any]) -> None:
    assert result["task"] == "pos" and result["metric"] == "accuracy"
    assert result["test"]["mean"] > 90 and result["test"]["n"] == 2
    accuracies = [seed["test"]["accuracy"] for seed in result["seeds"]]
    assert result["test"]["mean"] == pytest.approx(np.mean(accuracies))
    assert result["test"]["sd"] == pytest.approx(np.std(accuracies, ddof=1))


def test_layers_computed_in_the_step_of_four_devices_give_the_losses_of_cached_ones(folder: Path, run: Path) -> None:
    train(folder, folder / "computed", f"bilm={folder / 'bilm'}", *WITH_ELMO, "elmo.precompute=false", devices=4)
    assert len(curve(run, "train/loss")) == 4
    assert curve(folder / "computed", "dev/accuracy") == curve(run, "dev/accuracy")
    np.testing.assert_allclose(curve(folder / "computed", "train/loss"), curve(run, "train/loss"), rtol=1e-5)
    assert not (folder / "computed" / "elmo").exists()


def test_layers_are_cached_once(folder: Path, run: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in (run / "elmo").glob("[!.]*")}
    assert len(files) == 1  # the words of train, dev and test
    train(folder, folder / "shared", f"bilm={folder / 'bilm'}", *WITH_ELMO, f"elmo.cache={run / 'elmo'}", devices=2)
    assert {path: path.stat().st_mtime_ns for path in (run / "elmo").glob("[!.]*")} == files
    np.testing.assert_allclose(curve(folder / "shared", "train/loss"), curve(run, "train/loss"), rtol=1e-5)


def test_a_second_launch_changes_nothing(folder: Path, run: Path, result: dict[str, Any]) -> None:
    again = train(folder, run, f"bilm={folder / 'bilm'}", *WITH_ELMO, "seeds=(0,4)")
    assert again == result


def test_a_seed_added_later_leaves_the_others(folder: Path, run: Path, result: dict[str, Any]) -> None:
    more = train(folder, run, f"bilm={folder / 'bilm'}", *WITH_ELMO, "seeds=(0,4,5)")
    assert more["seeds"][:2] == result["seeds"] and more["test"]["n"] == 3


def test_a_run_keeps_the_shapes_of_its_first_launch(
    folder: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is resumed on other devices, which have other shapes by default, would have other batches."""
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "seed_4")
    monkeypatch.setattr(data, "CPU", data.ACCELERATOR)
    train(folder, tmp_path / "run", f"bilm={folder / 'bilm'}", *WITH_ELMO, "seeds=(0,4)")
    assert curve(tmp_path / "run", "train/loss", seed=4) == curve(run, "train/loss", seed=4)


def test_a_loaded_task_predicts_what_the_training_wrote(run: Path, loaded: elmo_jax.TrainedTask) -> None:
    written = (run / "seed_0" / "test.predictions").read_text().strip().split("\n\n")
    rows = [[line.split("\t") for line in sentence.splitlines()] for sentence in written]
    actual = loaded.predict([[row[0] for row in sentence] for sentence in rows])
    assert [value["tags"] for value in actual] == [[row[2] for row in sentence] for sentence in rows]
    (unknown,) = loaded.predict([["A", "sentence", "of", "words", "never", "seen"]])
    assert len(unknown["tags"]) == 6
    assert loaded.predict([]) == []


def test_evaluations_of_a_loaded_task_have_the_batches_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shapes of the training take the shorter sentences, so that the longer ones form other groups."""
    write_problem(tmp_path)
    sentences = (tmp_path / "train.conllu").read_text().split("\n\n")
    short = [sentence for sentence in sentences if 0 < len(sentence.splitlines()) <= 3]
    (tmp_path / "train.conllu").write_text("".join(f"{sentence}\n\n" for sentence in short))
    seen: list[tuple[int, ...]] = []
    iterate = TaskData.iterate

    def remember(self: TaskData[Any], batches: Any, draw: Any = None, progress: Any = None) -> Any:
        if len(self.examples) == 13:  # those of test.conllu
            seen.extend(batch.examples for batch in batches)
        return iterate(self, batches, draw, progress)

    monkeypatch.setattr(TaskData, "iterate", remember)
    settings = (f"bilm={tmp_path / 'bilm'}", *WITH_ELMO, "elmo.layer_norm=without_bos_eos", "train.epochs=1")
    result = train(tmp_path, tmp_path / "run", *settings, "train.batch_size=3")
    of_training = list(seen)
    seen.clear()
    actual = elmo_jax.load_task(tmp_path / "run").evaluate(str(tmp_path / "test.conllu"))
    assert seen == of_training and actual == pytest.approx(result["seeds"][0]["test"])


def test_an_ensemble_averages_the_seeds(run: Path, result: dict[str, Any], folder: Path) -> None:
    together = elmo_jax.load_task(run, seeds=[0, 4])
    metrics = together.evaluate(str(folder / "test.conllu"))
    assert metrics["accuracy"] == pytest.approx(result["ensemble"]["test"]["accuracy"])


def test_an_ensemble_names_the_seeds_that_are_missing(
    run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in run.iterdir():
        if path.name != "seed_4":
            (tmp_path / path.name).symlink_to(path)
    assert main(["task", "evaluate", str(tmp_path), "--data", str(folder / "test.conllu"), "--ensemble"]) == 0
    message = "elmo-jax: of config.seeds, left out of the average, since their training has not finished: 4"
    assert message in capsys.readouterr().err.splitlines()
    assert main(["task", "evaluate", str(run), "--data", str(folder / "test.conllu"), "--ensemble"]) == 0
    assert "left out" not in capsys.readouterr().err


def test_another_bilm_is_refused(folder: Path, run: Path, tmp_path: Path) -> None:
    config = read_config_file(epath.Path(run))
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in run.iterdir():
        if path.name != "config.json":
            (copy / path.name).symlink_to(path)
    config["metadata"]["fingerprint"]["bilm"] = "0" * 64
    write_checksummed_json(copy / "config.json", config, covered_by_seal)
    with pytest.raises(UserError, match="trained with a biLM of fingerprint 000000000000"):
        elmo_jax.load_task(copy)


def test_strong_regularization_leaves_the_layers_equal(folder: Path, result: dict[str, Any]) -> None:
    elmo = (f"bilm={folder / 'bilm'}", *WITH_ELMO)
    strong = train(folder, folder / "strong", *elmo, "elmo.regularization=100", f"elmo.cache={folder / 'run' / 'elmo'}")
    for where in ("input", "output"):
        np.testing.assert_allclose(strong["seeds"][0]["elmo"][where]["weights"], 1 / 3, atol=0.01)
    free = [result["seeds"][0]["elmo"][where]["weights"] for where in ("input", "output")]
    assert max(np.abs(np.array(free) - 1 / 3).max(axis=-1)) > 0.02


def test_smaller_shares_are_parts_of_larger_ones() -> None:
    examples = list(range(100))
    shares = [
        training_share(examples, task_config({"task": "pos", "data": {"train_fraction": fraction}}))
        for fraction in (0.01, 0.1, 0.5, 1.0)
    ]
    assert [len(share) for share in shares] == [1, 10, 50, 100]
    for small, large in zip(shares, shares[1:], strict=False):
        assert set(small) < set(large) and small == sorted(small)


def test_parameters_are_counted_without_word_vectors(folder: Path, result: dict[str, Any]) -> None:
    words, elmo, units = 5, 14, 6
    lstms = 2 * 4 * units * (words + elmo + units + 1)
    mixes = 2 * (3 + 1)
    tags = (2 * units + elmo + 1) * 4
    assert result["parameters"] == lstms + mixes + tags


@pytest.mark.parametrize(
    ("every", "steps"), [pytest.param(1000, [0, 20], marks=pytest.mark.slow), (6, [0, 6, 12, 18, 20])]
)
def test_the_last_step_is_evaluated(folder: Path, tmp_path: Path, every: int, steps: list[int]) -> None:
    """Also if `evaluate_every` does not divide the steps, or is more than all of them: here 4 epochs have 20 steps."""
    actual = train(folder, tmp_path / "run", f"train.evaluate_every={every}")
    assert curve(tmp_path / "run", "step") == steps
    assert actual["seeds"][0]["epochs"] == 4
    assert actual["dev"]["mean"] > 80  # an untrained model has less


def test_the_best_evaluation_is_restored(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From step 10 on the loss is maximized, so that the evaluations at steps 15 and 20 are worse."""
    rate = Trainer._rate

    def reversed_later(self: Trainer[Any, Any], step: int, history: Any) -> float:
        return rate(self, step, history) * (1 if step < 10 else -3)

    monkeypatch.setattr(Trainer, "_rate", reversed_later)
    actual = train(folder, tmp_path, "train.evaluate_every=5")["seeds"][0]
    accuracies = dict(zip(curve(tmp_path, "step"), curve(tmp_path, "dev/accuracy"), strict=True))
    assert accuracies[20] < accuracies[10] - 10
    assert actual["step"] == 10 and actual["epoch"] == 2 and actual["dev"]["accuracy"] == accuracies[10]
    loaded = elmo_jax.load_task(tmp_path)
    again = loaded.evaluate(str(folder / "dev.conllu"))
    assert again["accuracy"] == pytest.approx(accuracies[10])


@pytest.mark.slow
def test_stopped_between_evaluations_none_is_lost(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = ("train.evaluate_every=3", "train.epochs=2")
    whole = train(folder, tmp_path / "whole", *settings)
    rate, stops = Trainer._rate, [3, 5, 6, 10]  # a signal arrives within the step before the one of each number
    signals = [signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU, signal.SIGTERM]  # the last one in the last step
    monkeypatch.setattr("elmo_jax.interrupts.SAME_SECONDS", 60.0)

    def with_signal(self: Trainer[Any, Any], step: int, history: Any) -> float:
        if stops and step == stops[0] - 1:
            stops.pop(0)
            for _ in range(2):  # a launcher may forward what the terminal has sent already
                signal.raise_signal(signals[0])
        return rate(self, step, history)

    monkeypatch.setattr(Trainer, "_rate", with_signal)
    config = task_config(with_overrides(default_config("pos"), overrides(folder, *settings)))
    launches, ended = 0, None
    while not isinstance(ended, Finished):
        ended = train_task(config, epath.Path(tmp_path / "stopped"), "test", jax.devices()[:1])
        launches += 1
        (tmp_path / "stopped" / "curve.png").mkdir(exist_ok=True)  # so that the plot cannot be written
        assert isinstance(ended, Finished) or ended.signal == signals.pop(0)
    assert launches == 5 and not stops
    for name in ("step", "dev/accuracy", "train/loss", "train/words"):
        assert curve(tmp_path / "stopped", name) == curve(tmp_path / "whole", name)
    assert read_result(epath.Path(tmp_path / "stopped")) == ended.result
    warnings = [line for line in capfd.readouterr().err.splitlines() if "curve.png: not written (IsADirectory" in line]
    assert len(warnings) == 1
    assert {**ended.result["seeds"][0], "seconds": 0, "words_per_second": 0} == {
        **whole["seeds"][0],
        "seconds": 0,
        "words_per_second": 0,
    }


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (None, "a list of examples"),
        (5, "a list of examples"),
        ("a dog", "a list of examples"),
        ([1], "lists of words"),
        ([None], "lists of words"),
        (["a dog"], "lists of words"),
        ([[["a"]]], "lists of words"),
        ([{"a": 1}], "lists of words"),
        ([(["a"], ["b"])], "1 texts per example, got 2"),
        ([iter(["a", "dog"])], "lists of words"),
    ],
)
def test_what_is_not_words_is_refused(loaded: elmo_jax.TrainedTask, inputs: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        loaded.predict(inputs)


def test_a_seed_of_an_earlier_launch_is_loaded(folder: Path, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    train(folder, tmp_path / "run", f"bilm={folder / 'bilm'}", *WITH_ELMO, "seeds=(4,)")
    assert elmo_jax.load_task(tmp_path / "run").seeds == [4]
    assert elmo_jax.load_task(tmp_path / "run", seeds=[0]).seeds == [0]
    with pytest.raises(UserError, match="seed 6 has not finished training; finished seeds: 4"):
        elmo_jax.load_task(tmp_path / "run", seeds=[6])


def test_a_run_of_the_other_kind_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{run}: the run of a task, not of a biLM"):
        elmo_jax.load_bilm(run)
    open_workdir(epath.Path(tmp_path), Config(), {}, ())
    with pytest.raises(UserError, match=f"{tmp_path}: the run of a biLM, not of a task"):
        elmo_jax.load_task(tmp_path)


@pytest.mark.parametrize("seeds", [[], [0, 0], 0, "0", [True], [0.0]])
def test_seeds_that_are_none_are_refused(run: Path, seeds: Any) -> None:
    with pytest.raises(UserError, match="seeds: expected a list of distinct whole numbers"):
        elmo_jax.load_task(run, seeds=seeds)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("inputs.json", b'{"labels": ['),
        ("inputs.json", b"{}"),
        ("inputs.json", None),
        ("words.npz", b"PK\x03\x04"),
        ("words.npz", None),
        ("seed_0/result.json", b'{"st'),
        ("seed_0/result.json", b"{}"),
    ],
)
def test_a_damaged_file_of_a_run_is_named(run: Path, tmp_path: Path, name: str, content: bytes | None) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / name).write_bytes(content) if content is not None else (copy / name).unlink()
    with pytest.raises(UserError, match=f"{name}: (damaged|missing)") as error:
        elmo_jax.load_task(copy)
    assert "\n" not in str(error.value)
