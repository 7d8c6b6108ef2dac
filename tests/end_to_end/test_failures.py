"""Tests failures in training: a full disk and a loss that is not finite. The last good checkpoint is kept."""

import re
from pathlib import Path

import pytest

from tests.end_to_end.commands import (
    EXPERIMENT,
    STEPS,
    Commands,
    assert_same_end,
    being_saved,
    checkpoint_steps,
    files,
    losses,
    records,
    saved_arrays,
)

# In bytes: more than the metrics of the small run, less than a checkpoint of it.
LARGEST_FILE = 40_960


def test_full_disk(commands: Commands, half: Path, whole: Path) -> None:
    good = checkpoint_steps(half)
    before = files(half / "checkpoints")
    failed = commands.pretrain(half, largest_file=LARGEST_FILE)
    next_step = good[-1] // 10 * 10 + 10
    for words in (f"step {next_step} could not be saved", f"last good checkpoint is that of step {good[-1]}"):
        assert words in failed.complaint
    assert checkpoint_steps(half) == good and not being_saved(half)
    after = files(half / "checkpoints")
    assert {name: after.get(name) for name in before} == before
    assert not (half / "result.json").exists()

    assert commands.pretrain(half).status == 0
    assert_same_end(half, whole)
    assert losses(half).keys() >= losses(whole).keys()


@pytest.mark.slow
def test_full_disk_at_the_first_checkpoint(commands: Commands, corpus: Path, tmp_path: Path) -> None:
    failed = commands.pretrain(tmp_path / "run", largest_file=LARGEST_FILE)
    assert "step 10 could not be saved" in failed.complaint and "no earlier checkpoint" in failed.complaint
    assert checkpoint_steps(tmp_path / "run") == [] and not being_saved(tmp_path / "run")


WILD = """
import elmo_jax.training.step

elmo_jax.training.step.lr_schedule = lambda config, total_steps: lambda step: 1e30
"""


def test_loss_that_is_not_finite(commands: Commands, corpus: Path, tmp_path: Path) -> None:
    run, experiment = tmp_path / "run", tmp_path / "wild.py"
    # no setting is large enough for this
    experiment.write_text(EXPERIMENT.format(steps=STEPS) + WILD)
    wild = ("pretrain", "--config", str(experiment), "--workdir", str(run))
    wild += ("--config.train.optimizer.clip_norm=0.0", "--config.checkpoint.every=1", "--config.train.log_every=1")
    complaint = commands.run(*wild).complaint
    actual = re.search(r"not finite|finite between steps (\d+) and (\d+)", complaint)
    assert actual and int(actual[1]) < int(actual[2]) < STEPS
    (kept,) = checkpoint_steps(run)
    assert (
        f"the last checkpoint is that of step {kept}" in complaint
        and "learning_rate" in complaint
        and str(run) in complaint
    )
    assert saved_arrays(run, kept)["step"] == kept
    assert all(abs(loss) < float("inf") for pair in losses(run).values() for loss in pair)
    assert not (run / "result.json").exists()

    before = files(run / "checkpoints")
    assert commands.run(*wild).status == 2
    assert files(run / "checkpoints") == before
    assert [r["step"] for r in records(run)] == list(range(kept + 1)), "no record of the step that failed"
