"""Tests `tools/accelerator.py` on CPU devices; `python -m tools.accelerator --tiny --out DIR` runs all of its steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from elmo_jax.model import lstm
from elmo_jax.model.precision import Precision
from elmo_jax.tasks.pos.task import read_conllu
from elmo_jax.tasks.squad.reader import read as read_questions
from tools.accelerator import Step, differences, machine, main, run_steps, steps_of, write_examples
from tools.measurements import CANDIDATES, candidate

SLEEP = "import time; print('began', flush=True); time.sleep(60)"


def numbers(log: str) -> dict[str, int]:
    return {"characters": len(log)}


@pytest.mark.slow
@pytest.mark.quick
def test_a_step_that_fails_or_takes_too_long_is_recorded_and_the_others_continue(tmp_path: Path) -> None:
    steps = {
        "fails": Step(["-c", "import not_a_module"], numbers),
        "leaves_nothing": Step(["-c", "pass"], lambda _: {"read": (tmp_path / "result.json").read_text()}),
        "works": Step(["-c", "print('four')"], numbers),
        "takes_long": Step(["-c", SLEEP], numbers),
        "comes_too_late": Step(["-c", "pass"], numbers),
    }
    run_steps(steps, tmp_path, 2.0, tiny=True)
    actual = json.loads((tmp_path / "accelerator.json").read_text())["steps"]
    assert actual["fails"]["status"] == 1 and "not_a_module" in actual["fails"]["last_lines"][-1]
    assert "FileNotFoundError" in actual["leaves_nothing"]["error"]
    assert actual["works"]["status"] == 0 and actual["works"]["numbers"] == {"characters": 5}
    assert actual["takes_long"]["status"].startswith("killed") and actual["takes_long"]["last_lines"] == ["began"]
    assert actual["comes_too_late"] == {"status": "not run"}


@pytest.mark.quick
def test_the_losses_of_two_precisions_are_compared_at_their_common_steps() -> None:
    actual = differences({5: [4.0, 2.0], 10: [2.0, 1.0], 15: [1.0, 1.0]}, {5: [4.0, 1.0], 10: [2.5, 1.0]})
    assert actual == {"compared_steps": [5, 10], "largest_difference": 0.5, "final_difference": 0.25}
    assert differences({5: [1.0, 1.0]}, {}) == {}


@pytest.mark.quick
def test_the_steps_and_what_they_read(tmp_path: Path) -> None:
    assert machine()["missing_packages"] == [] and "jaxlib" in machine()
    assert steps_of(tmp_path, tmp_path, tiny=True).keys() == steps_of(tmp_path, tmp_path, tiny=False).keys()
    for task, read in (("pos", lambda path: read_conllu(path, "upos")), ("squad", read_questions)):
        write_examples(tmp_path / task, task, 20)
        assert [len(read(path)) for path in (tmp_path / task).iterdir()] == [20, 20, 20]


@pytest.mark.slow
def test_the_command_measures_what_it_can(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path), "--tiny", "--steps", "devices,corpus,float32,embed"]) == 0
    actual = json.loads((tmp_path / "accelerator.json").read_text())["steps"]
    assert actual["float32"]["numbers"]["tokens_per_second"] > 0 and len(actual["float32"]["numbers"]["losses"]) == 4
    assert actual["devices"]["numbers"]["devices"][0] == "cpu" and actual["embed"]["numbers"]["tokens_per_second"] > 0


@pytest.mark.parametrize("name", list(CANDIDATES))
@pytest.mark.parametrize("together", [False, True])
def test_the_candidates_for_the_lstm_have_the_same_gradients(name: str, together: bool) -> None:
    """With products in float32, all but the one that rounds the pre-activations differ by the order of sums alone."""
    rng = np.random.default_rng(0)
    steps, rows, size, cells, projection = 5, 3, 4, 6, 2
    directions = (2,) if together else ()

    def drawn(*shape: int) -> np.ndarray:
        return rng.normal(size=(*directions, *shape)).astype(np.float32)

    kernel, bias = drawn(size + projection, 4 * cells), drawn(4 * cells)
    params = {"kernel": kernel, "bias": bias, "projection": drawn(cells, projection)}
    state = lstm.State(drawn(rows, cells), drawn(rows, projection))
    given = params, drawn(steps, rows, size), state, None, None
    settings = lstm.LSTMSettings(3.0, 3.0, Precision.FLOAT32, together=together)
    weights = drawn(steps, rows, projection)

    def gradient(run: Any) -> Any:
        return jax.jit(jax.grad(lambda *some: (run(*some, *given[3:], settings)[0] * weights).sum(), (0, 1, 2)))(
            *given[:3]
        )

    tolerance = 0.05 if name == "z in bfloat16" else 1e-5
    pairs = zip(*map(jax.tree.leaves, (gradient(candidate(name)), gradient(lstm._run))), strict=True)
    for actual, expected in pairs:
        np.testing.assert_allclose(actual, expected, atol=tolerance * np.abs(expected).max())
