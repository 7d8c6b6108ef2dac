"""Tests runs that are stopped, killed or damaged: the same command resumes them, with the same final numbers."""

import json
import os
import random
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from etils import epath

from elmo_jax.runs.lock import locked
from tests.end_to_end.commands import (
    STEPS,
    Commands,
    Ended,
    assert_same_end,
    being_saved,
    checkpoint_steps,
    files,
    losses,
    pretrain_arguments,
    records,
    saved_arrays,
    steps_trained,
    stopped_when,
    wait,
)
from tests.manual.chaos import evaluating

ATTEMPTS = 20  # a process may pass this moment before the signal reaches it


def resume(commands: Commands, run: Path, whole: Path, *overrides: str) -> Ended:
    """Launches a run again, and asserts that it ends as the uninterrupted one."""
    ended = commands.pretrain(run, *overrides)
    assert ended.status == 0, ended.stderr
    assert_same_end(run, whole)
    assert [r["step"] for r in records(run) if "heldout/perplexity/average" in r] == [0, 40, STEPS]
    assert not being_saved(run)
    return ended


def assert_same_losses(run: Path, whole: Path, *, stopped_at: int | None = None) -> None:
    """At every step; the report after a stop between two reports is a mean over fewer steps."""
    actual, expected = losses(run), losses(whole)
    cut = set()
    if stopped_at is not None and stopped_at not in expected:
        cut = {stopped_at, stopped_at + 5 - stopped_at % 5}
    assert {step: actual[step] for step in actual if step not in cut} == {
        step: expected[step] for step in expected if step not in cut
    }


def test_sigterm_saves_and_says_how_to_resume(terminated: Ended, stopped: Path) -> None:
    step = checkpoint_steps(stopped)[-1]
    assert 45 <= step < STEPS
    last = terminated.stdout.splitlines()[-1]
    for words in ("SIGTERM", f"step {step}", str(stopped), "run the same command to resume"):
        assert words in last
    assert "Traceback" not in terminated.stderr
    assert saved_arrays(stopped, step)["step"] == step
    assert not (stopped / "result.json").exists() and not being_saved(stopped)


def test_after_sigterm(commands: Commands, half: Path, whole: Path) -> None:
    """With other times of saving."""
    stopped_at = checkpoint_steps(half)[-1]
    before = records(half)
    resume(commands, half, whole, "--config.checkpoint.every=25", "--config.checkpoint.keep_every=5")
    assert records(half)[: len(before)] == before
    assert_same_losses(half, whole, stopped_at=stopped_at)


@pytest.mark.slow
def test_ctrl_c(commands: Commands, tmp_path: Path) -> None:
    """The run is saved by time alone, which here is at every step."""
    run = tmp_path / "run"
    by_time = ("--config.checkpoint.every=1000", "--config.checkpoint.minutes=1e-9", "--config.checkpoint.keep_every=3")
    for _ in range(ATTEMPTS):
        shutil.rmtree(run, ignore_errors=True)
        process = commands.start(*pretrain_arguments(run, *by_time))
        stopped_when(process, lambda: steps_trained(run) >= 8, signal.SIGINT, delay=0.01)
        ended = wait(process)
        if not (run / "result.json").exists():
            break
    assert ended.status == 128 + signal.SIGINT and "Traceback" not in ended.stderr
    stopped_at = checkpoint_steps(run)[-1]
    assert f"SIGINT at step {stopped_at}" in ended.stdout and "run the same command to resume" in ended.stdout
    assert checkpoint_steps(run)[-3:] == [stopped_at - 2, stopped_at - 1, stopped_at]
    assert {3, 6} <= set(checkpoint_steps(run))
    assert list(losses(run)) == list(range(1, stopped_at + 1))


def killed(commands: Commands, run: Path, condition: Callable[[], bool], delay: float = 0) -> None:
    """Launches a run and kills it at a moment; as often as it takes."""
    before = shutil.copytree(run, run.with_name("before"), dirs_exist_ok=True) if run.exists() else None
    for _ in range(ATTEMPTS):
        process = commands.start(*pretrain_arguments(run))
        hit = stopped_when(process, condition, signal.SIGKILL, delay)
        ended = wait(process)
        if hit and ended.status == -signal.SIGKILL:
            return
        assert ended.status == 0, ended.stderr
        shutil.rmtree(run)
        if before is not None:
            shutil.copytree(before, run)
    raise AssertionError("the process was never at that moment")


def test_kills(commands: Commands, whole: Path, tmp_path: Path) -> None:
    chance = random.Random(1)
    run = tmp_path / "run"

    first = chance.randrange(5, 15)
    killed(commands, run, lambda: steps_trained(run) >= first, delay=chance.uniform(0.001, 0.05))
    assert steps_trained(run) < STEPS

    later = max([0, *checkpoint_steps(run)]) + 20
    killed(commands, run, lambda: being_saved(run) and checkpoint_steps(run) != [] and steps_trained(run) >= later)
    half_written = next((run / "checkpoints").glob("*.orbax-checkpoint-tmp*"))
    step, rest = half_written.name.split(".", 1)  # one more line, as after a stop at a step that is not saved again
    shutil.copytree(half_written, half_written.with_name(f"{int(step) + 1}.{rest}"))

    newest = checkpoint_steps(run)[-1]
    ended = resume(commands, run, whole)
    assert f"resuming from the checkpoint of step {newest}\n" in ended.stdout
    assert_same_losses(run, whole)
    result = json.loads((run / "result.json").read_text())
    assert sum(result["seconds"].values()) == pytest.approx(result["wall_seconds"], abs=0.5)
    assert min(result["seconds"][phase] for phase in ("steps", "start", "compilation", "checkpoints", "lost")) > 0
    assert "lost to restarts" in ended.stdout


@pytest.mark.slow
def test_killed_in_bfloat16(commands: Commands, corpus: Path, tmp_path: Path) -> None:
    bfloat16 = "--config.train.precision=bfloat16"
    assert commands.pretrain(tmp_path / "whole", bfloat16).status == 0
    run = tmp_path / "run"
    process = commands.start(*pretrain_arguments(run, bfloat16))
    assert stopped_when(process, lambda: checkpoint_steps(run) != [] and steps_trained(run) >= 15, signal.SIGKILL)
    assert wait(process).status == -signal.SIGKILL
    ended = commands.pretrain(run, bfloat16)
    assert ended.status == 0 and "resuming from the checkpoint" in ended.stdout
    assert_same_end(run, tmp_path / "whole")


@pytest.mark.slow
def test_stopped_in_an_evaluation_and_killed_after_the_last_checkpoint(
    commands: Commands, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for _ in range(ATTEMPTS):
        shutil.rmtree(run, ignore_errors=True)
        process = commands.start(*pretrain_arguments(run))
        stopped_when(process, lambda: evaluating(run), signal.SIGTERM)
        ended = wait(process)
        if evaluating(run):
            break
    assert ended.status == 128 + signal.SIGTERM and "SIGTERM at step 40" in ended.stdout, ended
    assert evaluating(run) and checkpoint_steps(run)[-1] == 40
    killed(commands, run, lambda: STEPS in checkpoint_steps(run) and not (run / "result.json").exists())
    assert not (run / "result.json").exists()
    resume(commands, run, whole)
    assert_same_losses(run, whole)
    assert (run / "curve.png").exists()


@pytest.mark.slow
def test_killed_before_the_first_checkpoint(commands: Commands, corpus: Path, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    killed(commands, run, lambda: (run / "config.json").exists())
    assert checkpoint_steps(run) == []
    first = (whole / "metrics.jsonl").read_text().splitlines()[0]
    (run / "metrics.jsonl").write_text(f'{first}\n{{"step": 5, "tok')  # as if the system crashed between two blocks
    ended = resume(commands, run, whole)
    assert "the run was stopped before its first checkpoint; starting again from step 0" in ended.stdout
    assert_same_losses(run, whole)


def truncate(checkpoint: Path) -> str:
    """Removes the second half of the largest file."""
    largest = max((path for path in checkpoint.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.truncate(largest.stat().st_size // 2)
    return largest.name


def test_damaged_newest_checkpoint(commands: Commands, half: Path, whole: Path) -> None:
    newest = checkpoint_steps(half)[-1]
    name = truncate(half / "checkpoints" / str(newest))
    ended = resume(commands, half, whole)
    warning = next(line for line in ended.stderr.splitlines() if "damaged" in line)
    assert str(half / "checkpoints" / str(newest)) in warning and name in warning
    assert_same_losses(half, whole)
    assert not any("damaged" in path.name for path in (half / "checkpoints").iterdir())


def test_every_checkpoint_damaged(commands: Commands, half: Path) -> None:
    for step in checkpoint_steps(half):
        truncate(half / "checkpoints" / str(step))
    before = files(half)
    refused = commands.refuse_pretrain(half)
    assert str(half / "checkpoints") in refused and "every checkpoint is damaged" in refused
    assert files(half) == before


def test_a_complete_run_without_checkpoints_is_not_begun_again(commands: Commands, whole: Path, tmp_path: Path) -> None:
    """Its checkpoints were deleted to save space, or left out by rsync."""
    run = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    before = files(run)
    complaint = commands.refuse_pretrain(run, f"--config.train.steps={STEPS + 10}")
    assert "its checkpoints are gone" in complaint and "remove result.json" in complaint
    assert files(run) == before
    assert commands.inside(*pretrain_arguments(run)).status == 0  # nothing is to be done


@pytest.mark.parametrize(
    ("old", "new"), [('"relu"', '"tanh"'), ('"endless"', '"block"'), ('"cells": 32', '"cells": 33')]
)
def test_only_paths_may_be_edited(commands: Commands, half: Path, old: str, new: str) -> None:
    config = half / "config.json"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))
    assert "config.json: damaged or edited" in commands.inside("export", half, "--out", half / "other").complaint
    config.write_text(text.replace('"corpus": "corpus"', f'"corpus": "{commands.folder / "corpus"}"'))
    assert commands.inside("export", half, "--out", half / "other").status == 0


@pytest.mark.slow
def test_other_versions_are_named(commands: Commands, half: Path, whole: Path) -> None:
    config = json.loads((half / "config.json").read_text())
    assert config["versions"].keys() == {"elmo_jax", "jax", "jaxlib", "flax", "orbax-checkpoint", "grain"}
    config["versions"]["grain"] = "0.1.0"
    (half / "config.json").write_text(json.dumps(config))
    ended = resume(commands, half, whole)
    (line,) = [line for line in ended.stderr.splitlines() if "other versions" in line]
    assert "grain 0.1.0 → " in line and "jax " not in line and "not bit-exact" in line
    assert "other versions" not in commands.inside(*pretrain_arguments(half)).stderr


def test_a_second_launch_is_refused(commands: Commands, half: Path, tmp_path: Path) -> None:
    """A launch into a run's folder in use is refused; the refusal names the holder, and no file changes."""
    with locked(epath.Path(half)):
        before = files(half)
        for arguments in (pretrain_arguments(half), ["export", str(half)]):
            complaint = commands.inside(*arguments).complaint
            assert f"process {os.getpid()} on {socket.gethostname()} (since " in complaint, complaint
        assert files(half) == before
        assert commands.run("export", half, "--out", tmp_path / "elsewhere").status == 0
        assert files(half) == before


def test_a_shorter_run_is_refused_and_changes_nothing(commands: Commands, half: Path) -> None:
    before = files(half)
    complaint = commands.refuse_pretrain(half, "--config.train.steps=20")
    assert "but 20 are requested now; a run can be made longer, but not shorter" in complaint
    assert files(half) == before
