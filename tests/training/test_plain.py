"""The plain biLM makes the same update as the step of `pretrain`."""

import jax
import numpy as np
import pytest

from elmo_jax.checkpoints.softmax_layout import deinterleave
from elmo_jax.config import OptimizerConfig
from tests.training.helpers import VOCABULARY, SmallTraining, small_config
from tests.training.plain import PlainStep


@pytest.mark.parametrize("clip_norm", [0.5, pytest.param(0.0, marks=pytest.mark.slow)])
def test_the_plain_step_makes_the_same_update(clip_norm):
    training = SmallTraining(small_config(optimizer=OptimizerConfig(clip_norm=clip_norm)), devices=1)
    ours, _ = training.run(1)
    plain = PlainStep(training.config, VOCABULARY, 20)
    before = deinterleave(training.state.params, VOCABULARY)
    batch = next(training.host_batches())
    params, _ = jax.jit(plain)(before, plain.optimizer.init(before), batch, training.char_ids)
    for mine, other, first in zip(
        *(jax.tree.leaves(tree) for tree in (deinterleave(ours.params, VOCABULARY), params, before)), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
        assert not np.array_equal(other, first)
