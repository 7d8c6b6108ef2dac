"""Fifteen updates of bilm-tf's `restart.py`, from its checkpoint with Adagrad's accumulators."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.checkpoints.bilm_tf import checkpoint_of
from elmo_jax.checkpoints.layout import flatten
from elmo_jax.checkpoints.softmax_layout import deinterleave
from elmo_jax.config import Config, TrainConfig
from elmo_jax.data.batches import TrainingBatch
from elmo_jax.data.windows import Window
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.model.bilm import BiLM
from elmo_jax.training.evaluate_text import evaluate_text
from elmo_jax.training.partitioning import map_step
from elmo_jax.training.step import TrainStep, initial_state, with_accumulators
from tests.checkpoints.tensor_bundles import variables

ORACLE = Path(__file__).parents[1] / "oracles" / "bilm_tf"
SOURCE = (None, ORACLE, ORACLE / "words.txt")
STEPS, ROWS, UNROLL, WORDS = 15, 8, 20, 1500


def batch_and_char_ids(oracle, step):
    directions = ("forward", "backward")
    characters = np.stack([oracle[f"batches|{d}|char_ids"][step] for d in directions]).reshape(-1, 50)
    targets = np.stack([oracle[f"batches|{d}|targets"][step] for d in directions]).swapaxes(1, 2)
    distinct, inverse = np.unique(characters, axis=0, return_inverse=True)
    char_ids = np.full(characters.shape, 260, np.int32)
    char_ids[: len(distinct)] = distinct
    window = Window(
        words=np.arange(len(characters), dtype=np.int32),
        word_count=np.array([len(distinct)], np.int32),
        inputs=inverse.reshape(2, ROWS, UNROLL).swapaxes(1, 2).astype(np.int32),
        targets=targets.astype(np.int32),
    )
    nothing = np.zeros((ROWS, 2), np.int32), np.zeros((2, 0), np.int32), np.zeros(2, np.float32)
    return TrainingBatch(window, np.zeros((UNROLL, ROWS), bool), *nothing), jnp.asarray(char_ids)


def test_fifteen_steps_of_the_original_restart():
    oracle, checkpoint = dict(np.load(ORACLE / "restart.npz")), checkpoint_of(SOURCE)
    bilm = checkpoint.read()
    model = dataclasses.replace(bilm.config, dropout=0.0)
    train = TrainConfig(batch_size=ROWS, unroll_steps=UNROLL, negatives=0, steps=STEPS)  # Adagrad, 0.2, clip 10
    module = BiLM(model, encoder_chunk=16)
    step = TrainStep(module, train, STEPS, WORDS)
    start = jax.tree.map(jnp.asarray, (bilm.params, checkpoint.accumulators(bilm.config)))
    state = initial_state(Config(model=model, train=train), module, step.optimizer, start[0])
    state = with_accumulators(state, start[1], 1.0)
    program = map_step(step, state, make_mesh(jax.devices()[:1]))
    for n in range(STEPS):
        state, metrics = program(state, *batch_and_char_ids(oracle, n))
        assert_allclose(np.mean(metrics.loss), oracle["losses"][n], atol=1e-5)
    params = flatten(deinterleave(state.params, WORDS))
    sums = state.dense_optimizer[0].sum_of_squares | deinterleave({"softmax": state.softmax_accumulator}, WORDS)
    sums = flatten(sums)
    for name, (path, shape) in variables(model, WORDS).items():
        every = 10 if path.startswith("softmax/") else 1  # the oracle keeps every tenth row of the softmax
        for actual, slot in ((params, ""), (sums, "|Adagrad")):
            expected = oracle[f"end|{name.replace('/', '|')}{slot}"]
            assert_allclose(np.reshape(actual[path], shape)[::every], expected, rtol=1e-5, atol=1e-5)


def test_padding_of_the_softmax_never_divides_by_zero():
    """The full softmax updates all rows, those of the padding too, whose gradients are zero."""
    checkpoint = checkpoint_of(SOURCE)
    bilm = checkpoint.read()
    module, train = BiLM(bilm.config), TrainConfig(batch_size=ROWS)
    step = TrainStep(module, train, STEPS, WORDS)
    frozen = ("token_encoder",)
    state = initial_state(Config(model=bilm.config, train=train), module, step.optimizer, bilm.params, frozen)
    state = with_accumulators(state, checkpoint.accumulators(bilm.config), 1.0, frozen)
    assert all((np.asarray(leaf) > 0).all() for leaf in jax.tree.leaves(state.softmax_accumulator))
    assert state.dense_optimizer[0].sum_of_squares.keys() == {"forward", "backward"}


@pytest.mark.parametrize(("rows", "expected"), [(1, 123.91139221191406), (8, 124.33255004882812)])
def test_perplexity_of_the_original(rows, expected):
    """The expected values are those of bilm-tf's `run_test.py`, which drops the tokens of its last batch."""
    actual = evaluate_text(SOURCE[1], [str(ORACLE / "heldout.txt")], batch_size=rows, words=SOURCE[2])
    assert actual.perplexity.average == pytest.approx(expected, rel=1e-4)
    assert (actual.vocabulary_size, actual.merged, actual.step) == (WORDS, 0, 120)
