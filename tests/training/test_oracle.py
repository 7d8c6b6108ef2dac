"""The step that trains, against forty steps of the original trainer (full softmax, no dropout)."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.checkpoints.hdf5 import tree_from_published
from elmo_jax.checkpoints.options import read_options
from elmo_jax.checkpoints.softmax_layout import deinterleave
from elmo_jax.config import Config, OptimizerConfig, TrainConfig
from elmo_jax.data.batches import TrainingBatch
from elmo_jax.data.windows import Window
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.model.bilm import BiLM, LSTMForm
from elmo_jax.model.precision import Precision
from elmo_jax.training.partitioning import map_step
from elmo_jax.training.step import TrainStep, initial_state

ORACLE = Path(__file__).parents[1] / "oracles" / "training"
STEPS, ROWS, UNROLL, CHARACTERS = 40, 3, 7, 20


def part(oracle, name):
    return {key.removeprefix(f"{name}/"): oracle[key] for key in oracle if key.startswith(f"{name}/")}


def batch_and_char_ids(oracle, step):
    """Converts the oracle's batch of both directions from [row, step] to [step, row], with distinct words."""
    directions = ("forward", "backward")
    characters = np.stack([oracle[f"batches/{d}/char_ids"][step] for d in directions]).reshape(-1, CHARACTERS)
    distinct, inverse = np.unique(characters, axis=0, return_inverse=True)
    char_ids = np.full(characters.shape, 260, np.int32)
    char_ids[: len(distinct)] = distinct
    targets = np.stack([oracle[f"batches/{d}/targets"][step] for d in directions]).swapaxes(1, 2)
    window = Window(
        words=np.arange(len(characters), dtype=np.int32),
        word_count=np.array([len(distinct)], np.int32),
        inputs=inverse.reshape(2, ROWS, UNROLL).swapaxes(1, 2).astype(np.int32),
        targets=targets.astype(np.int32),
    )
    batch = TrainingBatch(
        window,
        reset_state=np.zeros((UNROLL, ROWS), bool),
        position=np.zeros((ROWS, 2), np.int32),
        negatives=np.zeros((2, 0), np.int32),
        num_draws=np.zeros(2, np.float32),
    )
    return batch, jnp.asarray(char_ids)


def states(carry):
    """Returns the LSTM states in the oracle's order: by direction, by layer, cell and then hidden."""
    return [carry[f"layer_{j}"][part][d] for d in range(2) for j in range(2) for part in range(2)]


def started(oracle, platform, precision=Precision.FLOAT32):
    """Returns the step, the state from which the original trainer starts, and the number of words."""
    model = read_options(ORACLE / "options.json")
    model = model.__class__(model.char_cnn, model.lstm, dropout=0.0)
    train = TrainConfig(
        batch_size=ROWS, unroll_steps=UNROLL, negatives=0, steps=STEPS, optimizer=OptimizerConfig(clip_norm=1.0)
    )
    bilm = BiLM(model, encoder_chunk=16, form=LSTMForm.of(platform), precision=precision)
    start = jax.tree.map(jnp.asarray, tree_from_published(part(oracle, "init")))
    vocabulary_size = len(start["softmax"]["bias"])
    step = TrainStep(bilm, train, STEPS, vocabulary_size)
    state = initial_state(Config(model=model, train=train), bilm, step.optimizer, start)
    return map_step(step, state, make_mesh(jax.devices()[:1])), state, vocabulary_size


@pytest.mark.parametrize("platform", ["cpu", pytest.param("gpu", marks=pytest.mark.slow), "tpu"])
def test_forty_steps_of_the_original_trainer(platform):
    """`platform` is the one whose form of the LSTMs is tested."""
    oracle = dict(np.load(ORACLE / "trajectory.npz"))
    program, state, vocabulary_size = started(oracle, platform)
    clipped = 0
    for n in range(STEPS):
        batch, char_ids = batch_and_char_ids(oracle, n)
        state, metrics = program(state, batch, char_ids)
        assert_allclose(metrics.loss, oracle["loss_forward_backward"][n], atol=1e-5)
        assert_allclose(np.mean(metrics.loss), oracle["loss"][n], atol=1e-5)
        assert_allclose(metrics.gradient_norm, oracle["grad_norm"][n], atol=1e-5)
        clipped += metrics.gradient_norm > 1
        if n == 0:
            for mine, expected in zip(states(state.carry), part(oracle, "state_after_step_1").values(), strict=True):
                assert_allclose(mine, expected, atol=1e-5)
    assert clipped > 30  # the clip acted
    for mine, expected in zip(states(state.carry), part(oracle, "state_final").values(), strict=True):
        assert_allclose(mine, expected, atol=1e-5)
    final = tree_from_published(part(oracle, "final"))
    params = deinterleave(state.params, vocabulary_size)
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-5), params, final)
    sums = tree_from_published(part(oracle, "accumulator"))
    dense = {name: tree for name, tree in sums.items() if name != "softmax"}
    mine = state.dense_optimizer[0].sum_of_squares
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-5), mine, dense)
    mine = deinterleave({"softmax": state.softmax_accumulator}, vocabulary_size)["softmax"]
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-5), mine, sums["softmax"])


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_forty_steps_in_bfloat16(platform):
    oracle = dict(np.load(ORACLE / "trajectory.npz"))
    program, state, _ = started(oracle, platform, Precision.BFLOAT16)
    distances = []
    for n in range(STEPS):
        state, metrics = program(state, *batch_and_char_ids(oracle, n))
        distances.append(np.abs(metrics.loss / oracle["loss_forward_backward"][n] - 1).max())
    assert 1e-6 < max(distances) < 0.005, distances
