"""Tests `finetune`: the report, early stopping, resuming, vocabularies, histories and mistakes."""

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from etils import epath

import elmo_jax
from elmo_jax.cli.main import main
from elmo_jax.data.corpus import Corpus
from elmo_jax.runs.result import read_result, write_result
from elmo_jax.training import throughput
from tests.end_to_end.commands import (
    STEPS,
    Commands,
    Ended,
    being_saved,
    checkpoint_steps,
    files,
    records,
    saved_arrays,
    steps_trained,
    stopped_when,
    wait,
)
from tests.end_to_end.finetuning import bilm_of, finetune, result_of, same
from tests.end_to_end.forked import Forked

# a learning rate at which held-out perplexity falls and then rises
RESTLESS = (
    *("--config.train.steps=400", "--config.train.optimizer.learning_rate=1.0", "--config.finetune.patience=1"),
    *("--config.evaluation.every=5", "--config.finetune.evaluations=0", "--config.checkpoint.every=10"),
    "--config.finetune.trainable=all_but_token_encoder",
)


def in_part(*arguments: str) -> int:
    """The command, whose evaluations during training are of one block of the held-out text."""
    throughput._LEAST_EVALUATED = 1
    return main(arguments)


def start_restless(domain: Commands, workdir: str | Path) -> Forked:
    return domain.call(f"{__name__}:in_part", *finetune("whole", workdir, *RESTLESS))


@pytest.fixture(scope="session")
def restless(domain: Commands) -> Path:
    """A run that early stopping ends."""
    ended = wait(start_restless(domain, "restless"))
    assert ended.status == 0, ended.stderr
    assert "stopped early at step" in ended.stdout and "the best on held-out text" in ended.stdout
    return domain.folder / "restless"


# Before and after


def test_result(run: Path, whole: Path) -> None:
    result = result_of(run)
    for when in ("before", "after"):
        for text in ("domain", "original"):
            assert result[when][text].keys() == {"forward", "backward", "average"}
    before, after = result["before"], result["after"]
    assert after["domain"]["average"] < 0.9 * before["domain"]["average"]
    # the text, the vocabulary and the rows are those of the first training's report
    assert before["original"] == pytest.approx(result_of(whole)["heldout_perplexity"], rel=1e-5)
    assert after["original"] != before["original"]
    assert after["domain"] == result["heldout_perplexity"] and before["domain"] == result["heldout_perplexity_before"]
    corpus = Corpus.open(run / "corpus")
    assert result["unknown_targets"]["domain"] == pytest.approx(corpus.report["splits"]["heldout"]["unknown_targets"])
    assert result["unknown_targets"]["original"] == pytest.approx(result_of(whole)["heldout_unknown"])
    assert result["vocabulary_size"] == result_of(whole)["vocabulary_size"]
    assert (result["steps"], result["exported_step"], result["stopped_early"]) == (40, 40, False)


def test_what_is_told(tuned: Ended, run: Path) -> None:
    result = result_of(run)
    table = tuned.stdout[tuned.stdout.index("\nperplexity ") :]
    for text in ("domain", "original"):
        for when in ("before", "after"):
            line = next(line for line in table.splitlines() if line.startswith(f"{text}, {when}"))
            assert f"{result[when][text]['average']:,.1f}" in line
            assert f"{result['unknown_targets'][text]:.2%}" in line
    assert "full softmax over the same words before and after; original: what the model was trained on" in table
    assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_domain_has_the_words_of_the_model(run: Path, corpus: Path) -> None:
    """No id is out of range: all words past the model's are <UNK> as targets."""
    domain = Corpus.open(run / "corpus")
    assert domain.vocabulary() == Corpus.open(corpus).vocabulary()
    ids = np.concatenate([domain.blocks("train")[i] for i in range(len(domain.blocks("train")))])
    assert ids.max() >= domain.vocabulary_size, "the domain has no new word"
    assert len(elmo_jax.load_bilm(run).params["softmax"]["bias"]) == domain.vocabulary_size


def test_numbers_are_those_of_evaluate(domain: Commands, run: Path, tmp_path: Path) -> None:
    ended = domain.run("evaluate", run, "--data", run / "corpus", "--json", tmp_path / "numbers.json")
    assert ended.status == 0, ended.stderr
    actual = json.loads((tmp_path / "numbers.json").read_text())
    assert actual["perplexity"] == pytest.approx(result_of(run)["after"]["domain"], rel=1e-5)


def test_second_launch_changes_nothing(domain: Commands, run: Path) -> None:
    before = files(run)
    again = domain.run(*finetune("whole", "tuned", "--config.train.steps=40"))
    assert again.status == 0 and "this run is complete: 40 steps" in again.stdout
    assert "already prepared" in again.stderr and "writing the blocks" not in again.stderr
    assert files(run) == before


# Early stopping, and what is exported


def test_early_stopping_exports_the_best(restless: Path) -> None:
    result = result_of(restless)
    heldout = {
        r["step"]: r["heldout/perplexity/average"] for r in records(restless) if "heldout/perplexity/average" in r
    }
    assert list(heldout) == list(range(0, result["steps"] + 1, 5)) and result["stopped_early"]
    best = min(heldout, key=heldout.__getitem__)
    assert 0 < result["exported_step"] == best == result["steps"] - 5 < 400
    params, info = bilm_of(restless)
    assert info["steps"] == best and info["heldout_perplexity"] == result["after"]["domain"]


def test_whole_text_is_evaluated_before_and_after(domain: Commands, restless: Path, tmp_path: Path) -> None:
    first, last = records(restless)[:2], records(restless)[-1]
    assert first[0]["heldout/tokens"] == last.get("heldout/tokens", first[0]["heldout/tokens"]) < 2000
    result = result_of(restless)
    assert result["before"]["domain"]["average"] == first[1]["whole_heldout/perplexity/average"]
    assert first[1]["whole_heldout/tokens"] == result["heldout_tokens"] > 3 * first[0]["heldout/tokens"]
    assert domain.inside("evaluate", restless, "--data", restless / "corpus", "--json", tmp_path / "n.json").status == 0
    actual = json.loads((tmp_path / "n.json").read_text())["perplexity"]
    assert actual == pytest.approx(result["after"]["domain"], rel=1e-5)


def test_frozen_part_is_bit_equal(restless: Path, whole: Path) -> None:
    params, before = bilm_of(restless)[0], bilm_of(whole)[0]
    for path, array in params.items():
        assert same(array, before[path]) == path.startswith("token_encoder/"), path
    last = saved_arrays(restless, result_of(restless)["steps"])
    assert not any("token_encoder" in path for path in last if path.startswith("dense_optimizer/"))


@pytest.mark.slow
def test_killed_and_resumed(domain: Commands, restless: Path, tmp_path: Path) -> None:
    """Killed after an evaluation and while a checkpoint is written; it ends where the other ended, bit for bit."""
    again = tmp_path / "again"
    evaluated = lambda: steps_trained(again) and records(again)[-1].get("heldout/perplexity/average")  # noqa: E731
    for condition in (evaluated, lambda: being_saved(again) and steps_trained(again) >= 10):
        process = start_restless(domain, again)
        stopped_when(process, condition, signal.SIGKILL)
        assert wait(process).status == -signal.SIGKILL and not (again / "result.json").exists()
    ended = wait(start_restless(domain, again))
    assert ended.status == 0, ended.stderr
    actual, expected = result_of(again), result_of(restless)
    for key in ("steps", "exported_step", "stopped_early", "before", "after", "unknown_targets"):
        assert actual[key] == expected[key], key
    states = [saved_arrays(folder, expected["steps"]) for folder in (again, restless)]
    assert states[0].keys() == states[1].keys()
    assert [path for path in states[0] if not same(states[0][path], states[1][path])] == []
    assert bilm_of(again)[1]["fingerprint"] == bilm_of(restless)[1]["fingerprint"]


@pytest.mark.slow
def test_a_damaged_best_step_is_passed_over(domain: Commands, restless: Path, tmp_path: Path) -> None:
    """Otherwise a run whose best checkpoint was damaged could never be completed."""
    run, best = shutil.copytree(restless, tmp_path / "run"), result_of(restless)["exported_step"]
    (run / "result.json").unlink()
    largest = max((run / "checkpoints" / str(best)).rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    ended = wait(start_restless(domain, run))
    assert ended.status == 0, ended.stderr
    assert f"checkpoints/{best}: damaged checkpoint" in ended.stderr
    scores = {r["step"]: r["heldout/perplexity/average"] for r in records(run) if "heldout/perplexity/average" in r}
    kept = {step: score for step, score in scores.items() if step in checkpoint_steps(run) and step != best}
    assert result_of(run)["exported_step"] == min(kept, key=lambda step: (kept[step], -step))


def test_export_writes_the_chosen_step(domain: Commands, restless: Path, tmp_path: Path) -> None:
    """It is that of `result.json` and of `load_bilm`, unless another one is named."""
    chosen = bilm_of(restless)[1]["fingerprint"]
    last = json.loads((restless / "result.json").read_text())["steps"]
    before = files(restless)
    complaint = domain.run("export", restless, "--step", "last").complaint
    assert "holds the run's model, of step" in complaint and "give --out PATH" in complaint
    assert files(restless) == before
    run = shutil.copytree(restless, tmp_path / "run")
    result = read_result(epath.Path(run)) or {}
    write_result(epath.Path(run), result | {"exported_step": 0})  # as if the text had not helped
    assert "holds the run's model, of step 0, in" in domain.inside("export", run, "--step", "last").complaint
    assert domain.run("export", restless, "--out", tmp_path / "chosen").status == 0
    assert elmo_jax.load_bilm(tmp_path / "chosen").fingerprint == chosen
    assert domain.run("export", restless, "--step", "last", "--out", tmp_path / "last").status == 0
    assert elmo_jax.load_bilm(tmp_path / "last").info["steps"] == last
    assert elmo_jax.load_bilm(tmp_path / "last").fingerprint != chosen


# Without steps: the original model, and its history


@pytest.fixture(scope="session")
def untrained(domain: Commands, run: Path) -> Ended:
    """No steps, from a copy of the tuned run's export that lies by itself; its run is `untrained/`."""
    shutil.copytree(run / "export", domain.folder / "elsewhere")
    return domain.run(*finetune("elsewhere", "untrained", "--epochs", "0"))


def test_no_steps_change_nothing(domain: Commands, untrained: Ended, run: Path) -> None:
    assert untrained.status == 0, untrained.stderr
    params, info = bilm_of(domain.folder / "untrained")
    before, info_before = bilm_of(run)
    assert info["fingerprint"] == info_before["fingerprint"]
    assert all(same(params[path], before[path]) for path in before)
    result = result_of(domain.folder / "untrained")
    assert result["before"] == result["after"] and result["steps"] == 0
    assert result["before"]["domain"] == pytest.approx(result_of(run)["after"]["domain"], rel=1e-5)


def test_original_that_is_not_there_is_said(domain: Commands, untrained: Ended) -> None:
    printed = [line for line in untrained.stdout.splitlines() if line.startswith("what is forgotten is not measured")]
    assert len(printed) == 1 and "elsewhere" in printed[0] and "--original" in printed[0]
    result = result_of(domain.folder / "untrained")
    assert result["before"]["original"] is None and result["after"]["original"] is None
    assert "original, after" in untrained.stdout and untrained.stdout.count(" not measured\n") == 2
    again = domain.run(*finetune("elsewhere", "untrained", "--epochs", "0", "--original", "text"))
    assert "original_fingerprint was None and is now" in again.complaint


def test_history_is_a_chain(domain: Commands, untrained: Ended, run: Path, whole: Path) -> None:
    info = bilm_of(domain.folder / "untrained")[1]
    tuned, first = bilm_of(run)[1], bilm_of(whole)[1]
    assert info["finetuned_from"] == tuned
    assert tuned["finetuned_from"] == first and "finetuned_from" not in first
    assert (info["steps"], tuned["steps"], first["steps"]) == (0, 40, STEPS)
    assert tuned["corpus_sources"] == ["domain"] and first["corpus_sources"] == ["text"]
    assert tuned["experiment"] == "tuned" and tuned["settings"]["train"]["steps"] == 40
    ended = domain.run("export", run, "--step", "40", "--out", domain.folder / "exported")
    assert ended.status == 0 and bilm_of(domain.folder / "exported")[1] == tuned


@pytest.mark.slow
def test_a_model_that_was_exported_again_is_the_same(domain: Commands, run: Path, tmp_path: Path) -> None:
    """A run continues with it, even if what is recorded about the model differs."""
    first = shutil.copytree(run, tmp_path / "first")
    assert domain.run(*finetune(first, tmp_path / "second", "--epochs", "0")).status == 0
    first = first.rename(tmp_path / "renamed")
    ended = domain.run("export", first, "--step", "best")
    assert ended.status == 0, ended.stderr
    assert bilm_of(first)[1]["experiment"] == "renamed"
    again = domain.run(*finetune(first, tmp_path / "second", "--epochs", "0"))
    assert again.status == 0 and "this run is complete" in again.stdout, again.stderr


@pytest.mark.slow
def test_the_corpus_of_an_attempt_before_is_left_alone(domain: Commands, run: Path, tmp_path: Path) -> None:
    """What an attempt that was refused has prepared in the folder is not the corpus of the run that begins there."""
    corpus = shutil.copytree(run / "corpus", tmp_path / "corpus")
    refused = ("--heldout-fraction", "0.5", "--config.train.batch_size=100000")
    assert domain.run(*finetune("whole", tmp_path / "run", *refused)).status == 2
    assert (tmp_path / "run" / "corpus").exists()
    arguments = ["finetune", "--from", "whole", "--workdir", tmp_path / "run", "--data", corpus, "--epochs", "0"]
    ended = domain.run(*arguments)
    assert ended.status == 0, ended.stderr
    ended = domain.run("export", tmp_path / "run", "--out", tmp_path / "out")
    assert ended.status == 0, ended.stderr
    shutil.rmtree(corpus)
    complaint = domain.run("export", tmp_path / "run", "--out", tmp_path / "out").complaint
    assert "config.json" in complaint and "no such folder" in complaint


# Vocabularies


def test_extended_vocabulary(domain: Commands, whole: Path) -> None:
    """On two devices, between which the rows are divided."""
    settings = ("--config.finetune.vocabulary=extend", "--config.train.softmax=sharded")
    ended = domain.run(*finetune("whole", "extended", "--epochs", "0", *settings), devices=2)
    assert ended.status == 0, ended.stderr
    run = domain.folder / "extended"
    (params, _), (before, _) = bilm_of(run), bilm_of(whole)
    known = len(before["softmax/bias"])
    for path, array in params.items():
        assert same(array[:known] if path.startswith("softmax/") else array, before[path]), path
    old, new = elmo_jax.load_bilm(whole).vocabulary, elmo_jax.load_bilm(run).vocabulary
    assert old is not None and new is not None and new[:known] == old and len(new) > known
    assert len(params["softmax/bias"]) == len(new)
    corpus = Corpus.open(run / "corpus")
    counts = corpus.counts()[known : len(new)]
    assert (counts >= 2).all() and (np.diff(counts) <= 0).all()
    result = result_of(run)
    kept = result["before_over_kept_vocabulary"]["domain"]
    assert kept["average"] < result["before"]["domain"]["average"], "to name a word is harder than to say <UNK>"
    assert result["unknown_targets"]["domain"] < 0.5 * corpus_unknown(domain.folder / "tuned" / "corpus")
    assert result["before"] == result["after"] and result["before"]["original"] is not None


def corpus_unknown(folder: Path) -> float:
    return Corpus.open(folder).report["splits"]["heldout"]["unknown_targets"]


def test_published_weights_get_a_softmax_first(domain: Commands, whole: Path) -> None:
    assert domain.run("export-hdf5", "whole", "options.json", "weights.hdf5").status == 0
    settings = ("batch_size=8", "unroll_steps=10", "negatives=64")
    ended = domain.run(
        *finetune("weights.hdf5", "published", "--options", "options.json", "--epochs", "0.1"),
        *(f"--config.train.{setting}" for setting in settings),
        "--config.finetune.softmax_epochs=0.1",
    )
    assert ended.status == 0, ended.stderr
    assert "weights.hdf5 has no softmax" in ended.stdout and "the biLM frozen" in ended.stdout
    run = domain.folder / "published"
    (fitted, fitted_info), (before, _) = bilm_of(run / "softmax"), bilm_of(whole)
    for path, array in before.items():
        assert path.startswith("softmax/") or same(fitted[path], array), path
    of_softmax, result = result_of(run / "softmax"), result_of(run)
    assert of_softmax["after"]["domain"]["average"] < of_softmax["before"]["domain"]["average"]
    # "before fine-tuning" is measured after the fit
    assert result["before"]["domain"] == pytest.approx(of_softmax["after"]["domain"], rel=1e-5)
    params, info = bilm_of(run)
    assert info["finetuned_from"] == fitted_info
    assert not all(same(params[path], before[path]) for path in before if path.startswith("forward/"))
    frozen = {path: array for path, array in before.items() if not path.startswith("softmax/")}
    from elmo_jax.checkpoints.layout import fingerprint

    assert fitted_info["finetuned_from"]["fingerprint"] == fingerprint(frozen)
