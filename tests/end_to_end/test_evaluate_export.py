"""`evaluate` and `export`: the numbers of a run, of its exports and of any text."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
from etils import epath

import elmo_jax
from elmo_jax.checkpoints.from_run import load_run
from elmo_jax.checkpoints.layout import flatten, unflatten
from elmo_jax.checkpoints.softmax_layout import deinterleave
from elmo_jax.runs.perplexity import WHOLE, Perplexity, read_evaluations, write_evaluations
from tests.end_to_end.commands import STEPS, Commands, checkpoint_steps, files, records, saved_arrays

TEXT = """\
the people of the United States have zzyzx .
Congress , and the qwertyuiop House of Representatives , met .

peace .
"""
WORDS, SENTENCES, UNKNOWN = 9 + 11 + 2, 3, 2  # the counts of TEXT, found by hand


def evaluate(commands: Commands, tmp_path: Path, model: Path, *arguments: str | Path) -> dict:
    """Returns what `elmo-jax evaluate --json` writes, and checks that its output is the same."""
    numbers = tmp_path / "numbers.json"
    ended = commands.run("evaluate", model, "--data", *arguments, "--json", numbers)
    assert ended.status == 0, ended.stderr
    actual = json.loads(numbers.read_text())
    names = ("forward", "backward", "average")
    line = " · ".join(f"{name} {actual['perplexity'][name]:,.2f}" for name in names)
    assert f"perplexity: {line}" in ended.stdout
    assert f"{actual['tokens']:,} tokens in {actual['sentences']:,} sentences" in ended.stdout
    assert f"{actual['unknown_targets']:.2%}" in ended.stdout
    return actual


@pytest.fixture(scope="module")
def text(commands: Commands) -> Path:
    path = commands.folder / "some_text.txt"
    path.write_text(TEXT)
    return path


def test_heldout_figure_of_the_run_is_reproduced(commands: Commands, whole: Path, corpus: Path, tmp_path: Path) -> None:
    result = json.loads((whole / "result.json").read_text())
    actual = evaluate(commands, tmp_path, whole, corpus)
    assert actual["perplexity"] == pytest.approx(result["heldout_perplexity"], rel=1e-5)
    assert actual["tokens"] == result["heldout_tokens"]
    assert actual["unknown_targets"] == pytest.approx(result["heldout_unknown"])
    counted = json.loads((corpus / "corpus.json").read_text())["splits"]["heldout"]
    assert (actual["tokens"], actual["sentences"]) == (counted["tokens"], counted["sentences"])


def test_run_and_export_give_equal_numbers(commands: Commands, stopped: Path, text: Path, tmp_path: Path) -> None:
    """A run that has no export yet is read from its newest checkpoint."""
    assert not (stopped / "export").exists()
    assert (stopped / "curve.png").exists()  # since the first evaluation
    assert commands.run("export", stopped, "--out", tmp_path / "again").status == 0
    assert elmo_jax.load_bilm(tmp_path / "again").info["language"] == "en"
    before = files(stopped)
    of_run = evaluate(commands, tmp_path, stopped, text)
    assert commands.run("export", stopped, "--out", tmp_path / "out").status == 0
    assert files(stopped) == before
    assert evaluate(commands, tmp_path, tmp_path / "out", text) == of_run
    assert of_run["perplexity"]["average"] > 1


def test_unknown_words_are_counted(commands: Commands, whole: Path, corpus: Path, text: Path, tmp_path: Path) -> None:
    vocabulary = set((corpus / "vocabulary.txt").read_text().splitlines())
    assert [word for word in TEXT.split() if word not in vocabulary] == ["zzyzx", "qwertyuiop"]
    actual = evaluate(commands, tmp_path, whole, text)
    assert (actual["tokens"], actual["sentences"]) == (WORDS + SENTENCES, SENTENCES)
    assert actual["unknown_targets"] == pytest.approx(UNKNOWN / (WORDS + SENTENCES))
    assert actual["vocabulary_size"] == len(vocabulary)


def test_words_that_are_not_in_a_file_count_as_unknown(
    commands: Commands, whole: Path, corpus: Path, text: Path, tmp_path: Path
) -> None:
    vocabulary, fewer = corpus / "vocabulary.txt", tmp_path / "fewer.txt"
    fewer.write_text("<S>\n</S>\n<UNK>\nthe\nzzyzx\n")  # one of them is not in the biLM's vocabulary
    size = len(vocabulary.read_text().splitlines())
    same = evaluate(commands, tmp_path, whole, text, "--vocab", whole / "export")  # which has the same words
    assert same["merged_words"] == 0 and same["unknown_targets"] == pytest.approx(UNKNOWN / (WORDS + SENTENCES))
    assert same["perplexity"] == pytest.approx(evaluate(commands, tmp_path, whole, text)["perplexity"], rel=1e-5)
    actual = evaluate(commands, tmp_path, whole, text, "--vocab", fewer)
    assert actual["merged_words"] == size - 4
    assert actual["unknown_targets"] == pytest.approx(1 - (TEXT.split().count("the") + SENTENCES) / (WORDS + SENTENCES))
    assert 1 < actual["perplexity"]["average"] < same["perplexity"]["average"]


def test_files_of_words_that_are_refused(commands: Commands, whole: Path, text: Path, tmp_path: Path) -> None:
    for content, complaint in (
        ("the\n", "no <S> and no </S> and no <UNK>"),
        ("<S>\n</S>\n<UNK>\nzzyzx\n", "has no word of the biLM's vocabulary, so all words would count as <UNK>"),
    ):
        (tmp_path / "words.txt").write_text(content)
        ended = commands.inside("evaluate", whole, "--data", text, "--vocab", tmp_path / "words.txt")
        assert f"words.txt: {complaint}" in ended.complaint


def test_sentences_add_up_to_the_perplexity(commands: Commands, whole: Path, text: Path, tmp_path: Path) -> None:
    lines = tmp_path / "sentences.tsv"
    actual = evaluate(commands, tmp_path, whole, text, "--per-sentence", lines)
    head, *rows = [line.split("\t") for line in lines.read_text().splitlines()]
    assert head == ["sentence", "tokens", "forward", "backward", "text"]
    assert [row[4] for row in rows] == [line for line in TEXT.splitlines() if line]
    assert [int(row[1]) for row in rows] == [len(row[4].split()) + 1 for row in rows]
    tokens = sum(int(row[1]) for row in rows)
    for column, direction in ((2, "forward"), (3, "backward")):
        values = [float(row[column]) for row in rows]
        assert max(values) < 0
        assert math.exp(-sum(values) / tokens) == pytest.approx(actual["perplexity"][direction], rel=1e-4)


def test_sentences_of_a_prepared_corpus(commands: Commands, whole: Path, corpus: Path, tmp_path: Path) -> None:
    lines = tmp_path / "sentences.tsv"
    actual = evaluate(commands, tmp_path, whole, corpus, "--per-sentence", lines)
    rows = [line.split("\t") for line in lines.read_text().splitlines()[1:]]
    assert len(rows) == actual["sentences"]
    total = -sum(float(row[2]) for row in rows) / actual["tokens"]
    assert math.exp(total) == pytest.approx(actual["perplexity"]["forward"], rel=1e-4)


def test_corpus_of_another_vocabulary_is_refused(commands: Commands, whole: Path, tmp_path: Path) -> None:
    made = commands.inside("prepare", "text", "--out", tmp_path / "other", "--vocab-size", "500", "--workers", "1")
    assert made.status == 0
    complaint = commands.inside("evaluate", whole, "--data", tmp_path / "other").complaint
    assert f"{tmp_path / 'other'}: prepared with another vocabulary" in complaint


def test_evaluate_text_that_is_not_there(commands: Commands, whole: Path, tmp_path: Path) -> None:
    assert "nowhere.txt: no such file" in commands.inside("evaluate", whole, "--data", "nowhere.txt").complaint


def test_exports(commands: Commands, whole: Path, stopped: Path, tmp_path: Path) -> None:
    """The last step, the best step and any kept step can be exported."""
    evaluated = [r["step"] for r in records(stopped) if "heldout/perplexity/average" in r]
    assert evaluated[-1] == 40 < checkpoint_steps(stopped)[-1] < STEPS, "the best is not the last"
    for run, step, made in ((whole, str(STEPS - 20), STEPS - 20), (stopped, "best", 40), (whole, "last", STEPS)):
        before, out = files(run), tmp_path / step
        ended = commands.run("export", run, "--step", step, "--out", out)
        assert ended.status == 0 and str(out) in ended.stdout and "load_bilm" in ended.stdout
        assert files(run) == before
        bilm = elmo_jax.load_bilm(out)
        assert bilm.info["steps"] == made
        saved = flatten(deinterleave(unflatten(saved_arrays(run, made))["params"], len(bilm.vocabulary)))
        exported = flatten(bilm.params)
        assert exported.keys() == saved.keys()
        assert all(exported[path].tobytes() == saved[path].tobytes() for path in saved)
    of_run = elmo_jax.load_bilm(whole)
    assert (of_run.fingerprint, of_run.vocabulary, of_run.config) == (bilm.fingerprint, bilm.vocabulary, bilm.config)
    assert of_run.info["heldout_perplexity"] == bilm.info["heldout_perplexity"]


def test_export_into_the_run(commands: Commands, half: Path) -> None:
    ended = commands.run("export", half)
    assert ended.status == 0 and str(half / "export") in ended.stdout
    bilm = elmo_jax.load_bilm(half)
    assert bilm.info["steps"] == checkpoint_steps(half)[-1]
    assert bilm.vocabulary is not None and bilm.vocabulary[:3] == ["<S>", "</S>", "<UNK>"]


def test_the_model_of_a_complete_run_stays(commands: Commands, whole: Path) -> None:
    before = files(whole)
    for options in (("--step", str(STEPS - 20)), ("--softmax", "drop"), ("--dtype", "float16")):
        complaint = commands.inside("export", whole, *options).complaint
        assert f"holds the run's model, of step {STEPS}, in float32 and with its softmax; give --out PATH" in complaint
    assert files(whole) == before


def test_a_full_disk_loses_no_result(commands: Commands, whole: Path, text: Path) -> None:
    ended = commands.run("evaluate", whole, "--data", text, "--per-sentence", "/dev/full")
    assert ended.status == 2 and "perplexity: forward" in ended.stdout
    assert "elmo-jax: /dev/full: No space left on device" in ended.stderr


def test_steps_that_are_not_kept(commands: Commands, whole: Path, tmp_path: Path) -> None:
    for step, expected in (("7", "no checkpoint of step 7"), ("newest", "'last' or 'best'")):
        complaint = commands.inside("export", whole, "--step", step, "--out", tmp_path / "out").complaint
        assert expected in complaint
        assert re.search(rf"\b{STEPS}\b", complaint) or step == "newest"
        assert not (tmp_path / "out").exists()


def test_export_onto_something_else(commands: Commands, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("dear diary")
    assert "is a file; give a folder" in commands.inside("export", whole, "--out", tmp_path / "mine.txt").complaint
    assert files(tmp_path) == {"mine.txt": b"dear diary"}


def test_an_export_records_the_perplexity_of_the_whole_text(whole: Path, tmp_path: Path) -> None:
    """The evaluations during a training may read a part of the held-out text, and its end reads all of it."""
    run = shutil.copytree(whole, tmp_path / "run")
    of_whole = Perplexity(7.0, 7.0, 100, 0.1)
    evaluations = read_evaluations(epath.Path(run))
    write_evaluations(epath.Path(run), evaluations | {(WHOLE, STEPS): of_whole})
    assert load_run(run).info["heldout_perplexity"]["average"] == pytest.approx(7.0)
