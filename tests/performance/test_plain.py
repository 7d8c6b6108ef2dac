"""The plain biLM that the benchmark compares with makes the same update as the step of `pretrain`."""

import jax
import numpy as np
import pytest

from elmo_jax.checkpoints.softmax_layout import from_lanes
from elmo_jax.config import OptimizerConfig
from performance import table
from performance.plain import PlainStep
from tests.training.helpers import VOCABULARY, SmallTraining, small_config


@pytest.mark.parametrize("clip_norm", [0.5, 0.0])
def test_the_plain_step_makes_the_same_update(clip_norm):
    training = SmallTraining(small_config(optimizer=OptimizerConfig(clip_norm=clip_norm)), devices=1)
    ours, _ = training.run(1)
    plain = PlainStep(training.config, VOCABULARY, 20)
    before = from_lanes(training.state.params, VOCABULARY)
    batch = next(training.host_batches())
    params, _ = jax.jit(plain)(before, plain.optimizer.init(before), batch, training.spellings)
    for mine, other, first in zip(
        *(jax.tree.leaves(tree) for tree in (from_lanes(ours.params, VOCABULARY), params, before)), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
        assert not np.array_equal(other, first)


def test_the_line_of_the_table():
    numbers = {
        **dict.fromkeys(("model_gflops", "share_of_matmul", "matmul_gflops", "peak_memory_bytes"), 1.0),
        **{"tokens_per_second": 900.0, "tokens_per_second_per_matmul_gflops": 9.0, "compile_seconds": 1.0},
        "tokens_per_second_of_plain": 250.0,
    }
    first, second = table.line("train/tiny", numbers).splitlines()
    assert first.startswith("train/tiny") and second.split()[:4] == ["the", "plain", "biLM", "250"]
    assert second.endswith("the line above is 3.6 times as fast")
