"""What a launch of a run says of the launches before it."""

from __future__ import annotations

from pathlib import Path

import pytest
from etils import epath

from elmo_jax.training.run_context import RunContext
from tests.checkpoints.states import state

pytestmark = pytest.mark.quick


def test_a_launch_says_from_where_it_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def launch(step: int, save: int | None = None) -> str:
        with RunContext(epath.Path(tmp_path), keep=2) as context:
            context.open(step, total=9, done=step)
            context.write(step, {"train/loss": 1.0})
            if save is not None:
                context.checkpoints.save(save, state(save))
        return capsys.readouterr().out

    assert launch(0) == ""
    again = "the run was stopped before its first checkpoint; starting again from step 0\n"
    assert launch(0) == again == launch(0, save=0)  # fine-tuning saves step 0
    assert launch(0, save=3) == ""
    assert launch(3) == "resuming from the checkpoint of step 3\n"
