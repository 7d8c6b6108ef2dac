"""Tests the memory of the paper's model at full size, which is read from compiled programs; nothing is run."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from elmo_jax.config_file import load_config
from elmo_jax.data.batches import TrainingBatch
from elmo_jax.data.windows import Window
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.model.bilm import BiLM, initial_carry
from elmo_jax.training.evaluate import Evaluator
from elmo_jax.training.partitioning import map_step, preferred_encoder_chunk
from elmo_jax.training.step import TrainStep, initial_state

VOCABULARY, ROWS, STEPS = 793_471, 128, 20
GIGABYTE = 1e9

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def parts():
    path = Path(__file__).parents[2] / "experiments" / "pretrain_1b_word.py"
    config = load_config(path, [f"--config.train.batch_size={ROWS}"])
    mesh = make_mesh(jax.devices()[:1])
    model = BiLM(config.model, encoder_chunk=preferred_encoder_chunk(mesh))
    step = TrainStep(model, config.train, total_steps=1000, vocabulary_size=VOCABULARY)
    whole = model.clone(vocabulary_size=VOCABULARY)
    return config, mesh, step, jax.eval_shape(lambda: initial_state(config, whole, step.optimizer))


def shape(*size, dtype=jnp.int32):
    return jax.ShapeDtypeStruct(size, dtype)


def window(rows, steps):
    positions = shape(2, steps, rows)
    return Window(words=shape(2 * rows * steps), word_count=shape(1), inputs=positions, targets=positions)


def needed(lowered):
    memory = lowered.compile().memory_analysis()
    inputs_and_outputs = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return inputs_and_outputs + memory.temp_size_in_bytes


def test_training_fits_in_12_gb_and_gives_its_state_back_in_place(parts):
    config, mesh, step, state = parts
    batch = TrainingBatch(
        window(ROWS, STEPS),
        reset_state=shape(STEPS, ROWS, dtype=bool),
        position=shape(ROWS, 2),
        negatives=shape(2, config.train.negatives),
        num_draws=shape(2, dtype=jnp.float32),
    )
    char_ids = shape(VOCABULARY + 1000, 50, dtype=jnp.int16)
    lowered = map_step(step, state, mesh).lower(state, batch, char_ids)
    assert needed(lowered) < 12 * GIGABYTE


def test_evaluation_never_holds_the_logits_of_the_whole_vocabulary(parts):
    config, mesh, step, state = parts
    settings = config.evaluation
    evaluator = Evaluator(step.model, settings, mesh, VOCABULARY)
    rows, steps = settings.batch_size, settings.unroll_steps
    carry = jax.eval_shape(lambda: initial_carry(config.model, rows))
    char_ids = shape(VOCABULARY + 1000, 50, dtype=jnp.int16)
    lowered = evaluator.lower(state.params, window(rows, steps), carry, char_ids)
    logits = 2 * rows * steps * VOCABULARY * 4
    assert needed(lowered) < 4 * GIGABYTE < logits
