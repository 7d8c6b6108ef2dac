"""Small steps with real batches, for the tests of training."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from elmo_jax.characters import PADDING, encode_chars
from elmo_jax.config import CharCNNConfig, Config, LSTMConfig, ModelConfig, OptimizerConfig, TrainConfig
from elmo_jax.data.batches import BatchSettings, TrainingBatches
from elmo_jax.data.windows import DistinctWords, Share
from elmo_jax.distributed.mesh import make_mesh, named_shardings, to_devices
from elmo_jax.model.bilm import BiLM
from elmo_jax.model.precision import Precision
from elmo_jax.training.partitioning import BATCH_SPECS, map_step, state_specs
from elmo_jax.training.softmax_sharding import Placement
from elmo_jax.training.step import TrainStep, initial_state

TYPES, VOCABULARY, ROWS, STEPS, NEGATIVES = 60, 40, 8, 5, 16


def small_config(**train):
    """Returns a config without dropout, so that the devices' random numbers do not matter."""
    model = ModelConfig(CharCNNConfig(4, ((1, 3), (2, 5), (3, 6)), 1), LSTMConfig(cells=11, projection=7), dropout=0.0)
    optimizer = train.pop("optimizer", OptimizerConfig(clip_norm=2.0))
    settings = {"batch_size": ROWS, "unroll_steps": STEPS, "negatives": NEGATIVES, "steps": 20} | train
    return Config(model=model, train=TrainConfig(optimizer=optimizer, **settings))


class SmallTraining:
    """A training step on some of the devices, with its batches and its state."""

    def __init__(self, config, devices, chunk=16, placement=Placement.REPLICATED, vocabulary=VOCABULARY):
        self.config, self.vocabulary = config, vocabulary
        self.mesh = make_mesh(jax.devices()[:devices])
        rng = np.random.default_rng(0)
        letters = np.array(list("abcdefgh"))
        words = ["".join(rng.choice(letters, rng.integers(1, 12))) + str(i) for i in range(TYPES - 3)]
        self.char_ids = jnp.asarray(encode_chars(["<S>", "</S>", "<UNK>", *words], 50).astype(np.int32))
        sentences = [np.append(0, rng.integers(3, TYPES, rng.integers(2, 12))) for _ in range(200)]
        self.blocks = [np.concatenate(sentences[i : i + 5]).astype(np.int32) for i in range(0, 200, 5)]
        self.distinct = DistinctWords(np.asarray(self.char_ids), PADDING)
        self.model = BiLM(config.model, vocabulary, encoder_chunk=chunk, precision=Precision(config.train.precision))
        self.step = TrainStep(self.model.clone(vocabulary_size=0), config.train, 20, vocabulary, placement=placement)
        self.state = initial_state(config, self.model, self.step.optimizer)
        self.program = map_step(self.step, self.state, self.mesh)

    def host_batches(self):
        train = self.config.train
        settings = BatchSettings.of(self.config, self.vocabulary)
        share = Share(range(ROWS), self.mesh.size * train.accumulate)
        return TrainingBatches(self.blocks, self.distinct, settings, share)

    def placed(self, state):
        """Returns a copy on the devices, which a step may overwrite."""
        return jax.device_put(
            jax.tree.map(jnp.copy, state),
            named_shardings(state_specs(state, self.mesh, self.step.placement), self.mesh),
        )

    def run(self, steps):
        """Returns the state after some steps, and the metrics of each step."""
        state, batches, actual = self.placed(self.state), self.host_batches(), []
        for _ in range(steps):
            batch = to_devices(next(batches), BATCH_SPECS, self.mesh)
            state, metrics = self.program(state, batch, self.char_ids)
            actual.append(jax.device_get(metrics))
        return jax.device_get(state), actual


shared = functools.cache(SmallTraining)  # the same settings, the same object: its step is traced and compiled once


def forward_only(config):
    return dataclasses.replace(config, model=dataclasses.replace(config.model, directions=("forward",)))


def with_dropout(config, rate):
    return dataclasses.replace(config, model=dataclasses.replace(config.model, dropout=rate))
