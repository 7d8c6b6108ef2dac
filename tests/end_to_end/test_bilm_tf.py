"""Fine-tunes a training checkpoint of bilm-tf in one command, in one process and in two."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from elmo_jax.checkpoints.layout import flatten
from elmo_jax.checkpoints.open import open_bilm
from tests.distributed.pods import ends, free_port
from tests.end_to_end.commands import Commands, checkpoint_steps, records, saved_arrays
from tests.end_to_end.finetuning import result_of

ORACLE = Path(__file__).parents[1] / "oracles" / "bilm_tf"
SETTINGS = ("--config.model.dropout=0", "--config.train.steps=6", "--config.train.trackers=", "--workers", "1")
FRESH = "--config.finetune.optimizer=fresh"
STEPS = 6


def arguments(workdir: str, *more: str | Path) -> list[str | Path]:
    data = ("--data", ORACLE / "heldout.txt", "--heldout-fraction", "0.3")
    return ["finetune", "--from", ORACLE, "--workdir", workdir, *data, *SETTINGS, *more]


WORDS = ("--vocab", ORACLE / "words.txt")


@pytest.fixture(scope="module")
def alone(commands: Commands) -> Path:
    ended = commands.run(*arguments("restarted", *WORDS, "--processes", "1"))
    assert ended.status == 0, ended.stderr
    start = "from step 120 of the checkpoint, with LSTM states of zero; Adagrad continues with the accumulators of the"
    assert start in ended.stdout and "one is fitted first" not in ended.stdout
    assert "optimizer: Adagrad continues with the accumulators of the checkpoint" in ended.stdout
    return commands.folder / "restarted"


def test_steps_are_counted_from_those_of_the_checkpoint(alone: Path) -> None:
    assert [checkpoint_steps(alone)[-1], result_of(alone)["steps"]] == [120 + STEPS] * 2
    actual = records(alone)
    assert (actual[0]["step"], actual[0]["tokens"]) == (120, 0)
    assert (actual[-1]["step"], actual[-1]["tokens"]) == (120 + STEPS, STEPS * 8 * 20)
    assert actual[0]["heldout/perplexity/average"] > 1.1 * actual[-1]["heldout/perplexity/average"]
    bilm = open_bilm(alone)
    assert bilm.info["steps"] == 120 + STEPS and bilm.info["tokens_seen"] == STEPS * 8 * 20
    assert bilm.vocabulary == (ORACLE / "words.txt").read_text().split()
    assert bilm.info["finetuned_from"]["steps"] == 120


@pytest.mark.slow
def test_a_run_from_a_checkpoint_is_made_longer(commands: Commands, alone: Path) -> None:
    shutil.copytree(alone, commands.folder / "longer")
    more = ("--config.train.steps=8", "--processes", "1")
    ended = commands.run(*arguments("longer", *WORDS, *more))
    assert ended.status == 0, ended.stderr
    assert "resuming from the checkpoint of step 126" in ended.stdout + ended.stderr
    assert result_of(commands.folder / "longer")["steps"] == 128


@pytest.mark.slow
def test_two_processes_prepare_the_text_and_train_as_one(commands: Commands, alone: Path) -> None:
    pod = ("--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2")
    launched = [commands.start(*arguments("pair", *WORDS, *pod, "--process", str(process))) for process in range(2)]
    ended = ends(launched)
    assert [process.status for process in ended] == [0, 0], [process.stderr for process in ended]
    actual, expected = (flatten(open_bilm(folder).params) for folder in (commands.folder / "pair", alone))
    for path, array in expected.items():
        np.testing.assert_allclose(actual[path], array, atol=1e-5, err_msg=path)


@pytest.mark.slow
def test_adam_has_rates_that_fit_it(commands: Commands) -> None:
    """The rate of the checkpoint, 0.2, is one for Adagrad, as which the softmax is still trained."""
    adam = "--config.train.optimizer.name=adam"
    ended = commands.run(*arguments("adam", *WORDS, adam, "--processes", "1"))
    assert ended.status == 0, ended.stderr
    optimizer = json.loads((commands.folder / "adam" / "config.json").read_text())["config"]["train"]["optimizer"]
    assert (optimizer["name"], optimizer["learning_rate"], optimizer["softmax_learning_rate"]) == ("adam", 0.001, 0.2)
    result = result_of(commands.folder / "adam")
    assert "accumulators of the checkpoint" not in result["optimizer"]
    assert result["after"]["domain"]["average"] < result["before"]["domain"]["average"]


@pytest.mark.slow
def test_the_optimizer_may_start_fresh(commands: Commands, alone: Path) -> None:
    ended = commands.run(*arguments("fresh", *WORDS, FRESH, "--processes", "1"))
    assert ended.status == 0, ended.stderr
    assert "new accumulators, since config.finetune.optimizer is fresh" in ended.stdout
    assert result_of(commands.folder / "fresh")["optimizer"].startswith("new accumulators")
    fresh, continued = (saved_arrays(folder, 126) for folder in (commands.folder / "fresh", alone))
    sums = [path for path in fresh if "accumulator" in path or "sum_of_squares" in path]
    assert len(sums) == 27  # of 27 parameters
    for path in sums:
        assert fresh[path].mean() < continued[path].mean() and fresh[path].min() >= 1, path


@pytest.mark.quick
def test_a_checkpoint_without_vocabulary_is_not_fine_tuned(commands: Commands) -> None:
    complaint = commands.inside(*arguments("nothing", "--processes", "1")).complaint
    assert "nothing names the words of its softmax; give the vocabulary file with --vocab" in complaint
    assert not (commands.folder / "nothing").exists()


@pytest.mark.quick
def test_the_words_of_the_softmax_are_not_those_of_an_export(commands: Commands) -> None:
    """An export has the marks first, and would name other rows of a checkpoint that has them on other lines."""
    text = ("--data", ORACLE / "heldout.txt")
    assert "cannot be read (Is a directory)" in commands.inside("evaluate", ORACLE, "--vocab", ORACLE, *text).complaint
