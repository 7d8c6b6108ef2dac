"""In every task model, ELMo enters at the input and, with a second mix, at the output (paper, section 3.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.embedding.bilm import load_bilm
from elmo_jax.tasks.core import vocabulary
from elmo_jax.tasks.core.data import CPU, TaskData, choose_shapes
from elmo_jax.tasks.core.elmo_vectors import stored_size
from elmo_jax.tasks.core.inputs import TextEncoder
from elmo_jax.tasks.core.program import TaskProgram
from elmo_jax.tasks.core.setup import TaskSetup, rows_of
from elmo_jax.tasks.formats.sources import read_part
from elmo_jax.tasks.registry import NAMES, get_task
from tests.tasks.problems import PROBLEMS, config_of
from tests.tasks.tagging import write_problem

MIXES = ("mix_0", "mix_1")  # at the input and at the output


@pytest.fixture(scope="module")
def bilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bilm")
    write_problem(folder)
    return folder / "bilm"


@pytest.mark.parametrize("name", NAMES)
def test_each_mix_changes_the_predictions(name: str, bilm: Path, tmp_path: Path) -> None:
    task = get_task(name)
    config: Any = config_of(name, PROBLEMS[name](), tmp_path, f"bilm={bilm}", "elmo.where=both")
    examples = read_part(task, config, "dev")[:2]
    words, table = vocabulary.build(rows_of(task, examples), [], config.word_vectors, config.characters)
    labels = task.labels(examples, config)
    model = load_bilm(bilm)
    setup = TaskSetup(task, config, labels, words, table, model, make_mesh(jax.devices()[:1]))
    size, layers = stored_size(model.config), np.random.default_rng(0)

    def stored(rows: Any) -> list[np.ndarray]:
        return [layers.standard_normal((len(row), size)).astype(np.float32) for row in rows]

    program = TaskProgram(setup)
    data = TaskData(setup, TextEncoder(setup, stored), examples, choose_shapes(list(map(task.size, examples)), 1, CPU))
    batch = data.arrays(data.epoch(None)[0])
    random = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: (0.5 * random.standard_normal(leaf.shape)).astype(np.float32), program.abstract_state(batch).params
    )
    assert sorted(params["inputs"]["elmo"]) == sorted(MIXES)

    def evaluated(mix: str | None) -> list[np.ndarray]:
        changed = jax.tree.map(np.copy, params)
        if mix:
            changed["inputs"]["elmo"][mix]["weights"] += np.array([3, -2, 0], np.float32)
        return jax.tree.leaves(jax.device_get(program.evaluate(changed, batch, {})))

    before = evaluated(None)
    for mix in MIXES:
        assert any((one != other).any() for one, other in zip(before, evaluated(mix), strict=True)), mix
    for one, other in zip(before, evaluated(None), strict=True):
        np.testing.assert_array_equal(one, other)
