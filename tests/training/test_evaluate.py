"""Tests held-out perplexity against the plain form, on any number of devices, in any windows and chunks."""

import dataclasses
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from elmo_jax.checkpoints.softmax_layout import deinterleave, interleave
from elmo_jax.config import EvaluationConfig
from elmo_jax.data.windows import EvaluationWindow, Window, both_directions
from elmo_jax.distributed.mesh import REPLICATED, make_mesh
from elmo_jax.errors import UserError
from elmo_jax.model.bilm import initial_carry
from elmo_jax.training import evaluate as evaluation
from elmo_jax.training.evaluate import Evaluator, with_merged
from tests.training.helpers import VOCABULARY, SmallTraining, forward_only, small_config, with_dropout

SETTINGS = EvaluationConfig(batch_size=3, unroll_steps=7, vocabulary_chunk=9)


@pytest.fixture(scope="module")
def training():
    """Returns a training with dropout in its config, which evaluation must not apply."""
    return SmallTraining(with_dropout(small_config(), 0.5), devices=1)


def evaluate(training, settings, devices, blocks=None, merged=None, sources=()):
    mesh = make_mesh(jax.devices()[:devices])
    evaluator = Evaluator(training.step.model, settings, mesh, VOCABULARY, merged=merged)
    params = training.state.params
    if merged is not None:
        params = interleave(with_merged(deinterleave(params, VOCABULARY), merged))
    params = jax.device_put(params, jax.sharding.NamedSharding(mesh, REPLICATED))
    blocks = training.blocks[:6] if blocks is None else blocks
    return evaluator.sentences(params, blocks, training.distinct, training.char_ids, sources=sources)


def plain_losses(training, text):
    """Returns the losses [2, n, V] of all words in one row's text by the plain softmax, and the targets [2, n].

    The state is carried.
    """
    streams = both_directions(text)
    params, model = deinterleave(training.state.params, VOCABULARY), training.step.model
    words = np.unique(text)
    position = np.zeros(words.max() + 2, np.int32)
    words = np.union1d(words, [0, 1])
    position[words] = np.arange(len(words))
    layers, _ = jax.jit(model.apply)(
        {"params": {name: tree for name, tree in params.items() if name != "softmax"}},
        training.char_ids[words],
        jnp.asarray(position[streams[::2]][:, :, None]),
        initial_carry(model.config, 1),
    )
    logits = layers[-1][:, :, 0] @ params["softmax"]["kernel"].T + params["softmax"]["bias"]  # [2, n, V]
    targets = np.where(streams[1::2] < VOCABULARY, streams[1::2], 2)
    return -np.asarray(jax.nn.log_softmax(logits)), targets


def test_equals_the_plain_form(training):
    actual, scores = evaluate(training, dataclasses.replace(SETTINGS, batch_size=1), devices=1)
    text = np.concatenate(training.blocks[:6])
    losses, targets = plain_losses(training, text)
    losses = np.take_along_axis(losses, targets[..., None], -1)[..., 0]
    assert_allclose(np.log([actual.forward, actual.backward]), losses.mean(1), rtol=1e-5)
    assert actual.average == pytest.approx(np.exp(losses.mean()), rel=1e-5)
    assert actual.tokens == len(text) == scores.tokens.sum()
    assert actual.unknown == np.mean(targets[0] == 2) > 0
    sentence = np.cumsum(text == 0) - 1
    assert_allclose(scores.log_probability[0], -np.bincount(sentence, losses[0]), rtol=1e-4)
    assert_allclose(scores.log_probability[1], -np.bincount(sentence, losses[1]), rtol=1e-4)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("chunk", [9, 1000])
def test_merged_words_have_the_sum_of_their_probabilities(training, devices, chunk):
    merged = np.arange(VOCABULARY) % 3 == 2  # with <UNK>
    settings = dataclasses.replace(SETTINGS, batch_size=1, vocabulary_chunk=chunk)
    actual, scores = evaluate(training, settings, devices, merged=merged)
    losses, targets = plain_losses(training, np.concatenate(training.blocks[:6]))
    losses = np.where(merged, -np.logaddexp.reduce(-losses[..., merged], -1, keepdims=True), losses)
    expected = np.take_along_axis(losses, targets[..., None], -1)[..., 0].mean(1)
    assert_allclose(np.log([actual.forward, actual.backward]), expected, rtol=1e-5)
    assert actual.unknown == merged[targets[0]].mean() > np.mean(targets[0] == 2)
    assert_allclose(-scores.log_probability.sum(1) / actual.tokens, expected, rtol=1e-5)


def test_unknown_words_alone_merge_nothing(training):
    whole, _ = evaluate(training, SETTINGS, devices=1)
    alone, _ = evaluate(training, SETTINGS, devices=1, merged=np.arange(VOCABULARY) == 2)
    assert_allclose([alone.forward, alone.backward], [whole.forward, whole.backward], rtol=1e-5)
    assert alone.unknown == whole.unknown


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


@pytest.mark.parametrize("devices", [1, 2])
def test_sources_combine_to_the_whole(training, devices):
    blocks, sources = training.blocks[:6], ["news", "news", "wiki", "wiki", "wiki", "talk"]
    whole, scores = evaluate(training, SETTINGS, devices, blocks)
    actual, _ = evaluate(training, SETTINGS, devices, blocks, sources=sources)
    assert (actual.forward, actual.backward, actual.tokens, actual.unknown) == (
        *(whole.forward, whole.backward, whole.tokens, whole.unknown),
    )
    assert list(actual.sources) == ["news", "wiki", "talk"] and not whole.sources
    parts = actual.sources.values()
    for direction in ("forward", "backward"):
        losses = [part.tokens * np.log(getattr(part, direction)) for part in parts]
        assert sum(losses) / whole.tokens == pytest.approx(np.log(getattr(whole, direction)))
    assert sum(part.unknown * part.tokens for part in parts) == pytest.approx(whole.unknown * whole.tokens)
    first = sum(int((block == 0).sum()) for block in blocks[:2])  # sentences
    assert actual.sources["news"].tokens == sum(map(len, blocks[:2]))
    mean = -scores.log_probability[:, :first].sum(1) / actual.sources["news"].tokens
    assert_allclose(np.log([actual.sources["news"].forward, actual.sources["news"].backward]), mean)
    unknown = sum(int(((block >= VOCABULARY) | (block == 2)).sum()) for block in blocks[:2])
    assert actual.sources["news"].unknown == unknown / actual.sources["news"].tokens


def test_more_rows_than_sentences(training):
    block = [np.array([0, 5, 6, 0, 7], np.int32)]
    actual, scores = evaluate(training, dataclasses.replace(SETTINGS, batch_size=8), devices=2, blocks=block)
    assert actual.tokens == 5 and scores.tokens.tolist() == [3, 2]


def test_a_forward_only_language_model_has_the_forward_perplexity(training):
    half = SmallTraining(forward_only(training.config), devices=1)
    both, one = (evaluate(one, SETTINGS, devices=2)[0] for one in (training, half))
    assert one.as_dict().keys() == {"forward", "average"}
    assert one.forward == one.average == pytest.approx(both.forward, rel=1e-5)


def test_no_text_is_a_mistake(training):
    with pytest.raises(UserError, match="no tokens"):
        evaluate(training, SETTINGS, devices=1, blocks=[])


MERGED = np.array([False, False, True])


def window_of(sentence, unknown=False):
    """Returns a window of some sentences [T, B], whose targets are the word 2 where they are `unknown`."""
    targets = np.broadcast_to(np.where(unknown, 2, 1), (2, *sentence.shape))
    window = Window(None, None, None, targets)
    return EvaluationWindow(window, mask=sentence >= 0, sentence=np.maximum(sentence, 0), left=0)


def test_the_sums_of_windows():
    random, totals = np.random.default_rng(0), evaluation._Totals(MERGED)
    tokens, losses, unknown = np.zeros(5000), np.zeros((2, 5000)), np.zeros(5000)
    for start in range(0, 4990, 10):
        sentence = start // 10 * 10 + random.integers(-1, 10, (4, 3))  # [T, B], out of order; below 0: padding
        sentence[sentence < start] = -1
        values = random.normal(size=(2, 4, 3)).astype(np.float32)
        rare = random.random((4, 3)) < 0.2
        totals.add(jnp.asarray(values), window_of(sentence, rare))
        for position in zip(*np.nonzero(sentence >= 0), strict=True):
            tokens[sentence[position]] += 1
            losses[:, sentence[position]] += values[:, *position]
            unknown[sentence[position]] += rare[position]
    last = int(np.flatnonzero(tokens)[-1]) + 1
    scores = totals.result()
    perplexity = scores.perplexity()
    assert_array_equal(scores.tokens, tokens[:last])
    assert_array_equal(scores.unknown, unknown[:last])
    assert_allclose(scores.log_probability, -losses[:, :last], rtol=1e-12)
    assert perplexity.tokens == tokens.sum() and perplexity.unknown == unknown.sum() / tokens.sum() > 0


def test_the_work_for_a_window_does_not_grow_with_the_text():
    totals = evaluation._Totals(MERGED)
    losses = jnp.ones((2, 4, 2))
    totals.add(losses, window_of(np.full((4, 2), 1_000_000)))
    window = window_of(np.arange(8).reshape(4, 2) * 100_000)
    tracemalloc.start()
    try:
        totals.add(losses, window)
        assert tracemalloc.get_traced_memory()[1] < 100_000  # bytes; an array of all sentences has 8 million
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_is_an_error(loss):
    totals = evaluation._Totals(MERGED)
    totals.add(jnp.array([[[1.0]], [[loss]]]), window_of(np.array([[0]])))
    with pytest.raises(UserError, match=f"not finite: forward 1.0, backward {loss} nats per token"):
        totals.result().perplexity()
