"""Held-out perplexity: against the plain form, on any number of devices, in any windows and chunks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.checkpoints.softmax_layout import from_lanes
from elmo_jax.config import EvaluationConfig
from elmo_jax.data.batches import both_directions
from elmo_jax.distributed.mesh import REPLICATED, make_mesh
from elmo_jax.errors import UserError
from elmo_jax.model.bilm import initial_carry
from elmo_jax.training.evaluate import Evaluator
from tests.training.helpers import VOCABULARY, SmallTraining, small_config, with_dropout

SETTINGS = EvaluationConfig(batch_size=3, unroll_steps=7, vocabulary_chunk=9)


@pytest.fixture(scope="module")
def training():
    """With dropout in its config, which evaluation must not apply."""
    return SmallTraining(with_dropout(small_config(), 0.5), devices=1)


def evaluate(training, settings, devices, blocks=None):
    mesh = make_mesh(jax.devices()[:devices])
    evaluator = Evaluator(training.step.model, settings, mesh, VOCABULARY)
    params = jax.device_put(training.state.params, jax.sharding.NamedSharding(mesh, REPLICATED))
    blocks = training.blocks[:6] if blocks is None else blocks
    return evaluator.sentences(params, blocks, training.distinct, training.spellings)


def plain_losses(training, text):
    """[2, n] losses of one row's text, both directions, by the plain softmax; state from zero and carried."""
    streams = both_directions(text)
    params, model = from_lanes(training.state.params, VOCABULARY), training.step.model
    words = np.unique(text)
    place = np.zeros(words.max() + 2, np.int32)
    words = np.union1d(words, [0, 1])
    place[words] = np.arange(len(words))
    layers, _ = model.apply(
        {"params": {name: tree for name, tree in params.items() if name != "softmax"}},
        training.spellings[words],
        jnp.asarray(place[streams[::2]][:, :, None]),
        initial_carry(model.config, 1),
    )
    logits = layers[-1][:, :, 0] @ params["softmax"]["kernel"].T + params["softmax"]["bias"]  # [2, n, V]
    targets = np.where(streams[1::2] < VOCABULARY, streams[1::2], 2)
    return -np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), targets[..., None], -1)[..., 0], targets


def test_equals_the_plain_form(training):
    found, scores = evaluate(training, dataclasses.replace(SETTINGS, batch_size=1), devices=1)
    text = np.concatenate(training.blocks[:6])
    losses, targets = plain_losses(training, text)
    assert_allclose(np.log([found.forward, found.backward]), losses.mean(1), rtol=1e-5)
    assert found.average == pytest.approx(np.exp(losses.mean()), rel=1e-5)
    assert found.tokens == len(text) == scores.tokens.sum()
    assert found.unknown == np.mean(targets[0] == 2) > 0
    sentence = np.cumsum(text == 0) - 1
    assert_allclose(scores.log_probability[0], -np.bincount(sentence, losses[0]), rtol=1e-4)
    assert_allclose(scores.log_probability[1], -np.bincount(sentence, losses[1]), rtol=1e-4)


def test_devices_windows_and_chunks_change_nothing(training):
    whole, scores = evaluate(training, SETTINGS, devices=1)
    for devices, change in (
        (2, {}),  # 3 rows on 2 devices: one stays empty
        (8, {}),
        (1, {"unroll_steps": 64}),
        (1, {"vocabulary_chunk": 1000}),
    ):
        other, others = evaluate(training, dataclasses.replace(SETTINGS, **change), devices)
        assert_allclose([other.forward, other.backward], [whole.forward, whole.backward], rtol=1e-5)
        assert (other.tokens, other.unknown) == (whole.tokens, whole.unknown)
        assert_allclose(others.log_probability, scores.log_probability, rtol=1e-4)


def test_more_rows_than_sentences(training):
    block = [np.array([0, 5, 6, 0, 7], np.int32)]
    found, scores = evaluate(training, dataclasses.replace(SETTINGS, batch_size=8), devices=2, blocks=block)
    assert found.tokens == 5 and scores.tokens.tolist() == [3, 2]


def test_no_text_is_a_mistake(training):
    with pytest.raises(UserError, match="no tokens"):
        evaluate(training, SETTINGS, devices=1, blocks=[])
