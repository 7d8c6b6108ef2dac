"""Tests the parts of the SQuAD model against document-qa's."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from elmo_jax.model.scalar_mix import ScalarMix
from elmo_jax.tasks.core.config import CharactersConfig
from elmo_jax.tasks.core.inputs import CharCNN
from elmo_jax.tasks.layers.recurrent import BiGRU
from elmo_jax.tasks.squad.model import MASKED, SelfAttention, softmax_with_null
from elmo_jax.tasks.squad.task import most_probable_span
from tests.tasks.oracle_cases import each_case
from tests.tasks.squad.from_document_qa import gru
from tests.tasks.squad.spans import spans_of_scores


class Convolution(CharCNN):
    """The convolution without the table, since document-qa's oracle has vectors at padding too."""

    @nn.compact
    def __call__(self, vectors, length):
        return self._convolve(0, vectors, length)


@each_case("squad.npz", "char_cnn")
def test_char_cnn(case):
    kernel, bias = case["param"]["conv1d/filters"][0], case["param"]["conv1d/bias"]
    vectors, length = case["input"]["characters"], case["input"]["word_length"]
    filters = ((len(kernel), len(bias)),)
    model = Convolution(1, CharactersConfig(vectors.shape[-1], filters, max_characters=vectors.shape[2]))
    actual = jax.jit(model.apply)({"params": {"filter_0_kernel": kernel, "filter_0_bias": bias}}, vectors, length)
    assert_allclose(actual, case["output"]["words"], rtol=0, atol=1e-5)


@each_case("squad.npz", "gru")
def test_gru(case):
    inputs, length = case["input"]["x"], case["input"]["length"]
    mask = np.arange(inputs.shape[1]) < length[:, None]
    params = gru(case["param"], "")
    actual = jax.jit(BiGRU(params["recurrent"].shape[1]).apply)({"params": params}, inputs, mask)
    assert_allclose(actual, case["output"]["y"] * mask[..., None], rtol=0, atol=1e-5)


@each_case("squad.npz", "elmo_mix")
def test_elmo_mix(case):
    layers, length = case["input"]["layers"], case["input"]["length"]
    mask = np.arange(layers.shape[2]) < length[:, None]
    params = {"weights": case["param"]["ELMo_W_0"], "gamma": case["param"]["ELMo_gamma_0"][0]}
    mixed, squares = jax.jit(ScalarMix().apply)({"params": params}, layers, mask)
    assert_allclose(mixed, case["output"]["mixed"] * mask[..., None], rtol=0, atol=1e-5)
    assert_allclose(0.001 * squares, case["output"]["l2_penalty_0.001"], rtol=1e-5)


@each_case("squad.npz", "best_span_ties", "best_span_17")
def test_best_spans(case):
    given = case["input"]
    spans, scores = spans_of_scores(given["start_logits"], given["end_logits"], int(given["bound"]))
    assert_array_equal(spans, case["output"]["span"])
    assert_allclose(scores, case["output"]["score"], rtol=0, atol=1e-5)


def test_ties_go_to_the_shorter_then_the_earlier_span():
    zeros = np.zeros((1, 4), np.float32)
    assert_array_equal(spans_of_scores(zeros, zeros, 3)[0], [[0, 0]])
    start, end = np.array([[1.0, 1, 0, 0]]), np.array([[0.0, 0, 1, 0]])
    assert_array_equal(spans_of_scores(start, end, 3)[0], [[1, 2]])
    assert_array_equal(spans_of_scores(start, end, 30)[0], [[1, 2]])  # a bound beyond the context
    assert_array_equal(spans_of_scores(start, end, 1)[0], [[0, 0]])


def test_products_of_small_probabilities_do_not_underflow():
    start, end = np.array([1e-30, 2e-30, 1e-30], np.float32), np.array([1e-30, 1e-30, 3e-30], np.float32)
    first, last, product = most_probable_span(start, end, 2)
    assert (first, last) == (1, 2) and product == pytest.approx(6e-60)


def test_softmax_with_null_is_stable_and_counts_the_null():
    scores = np.array([[1000.0, 999.0, MASKED], [0.0, 1.0, MASKED], [MASKED, MASKED, MASKED]], np.float32)
    weights = np.asarray(jax.jit(softmax_with_null)(scores, -1.0))
    total = np.exp(0) + np.exp(1) + np.exp(-1)
    expected = [[1 / (1 + np.exp(-1)), np.exp(-1) / (1 + np.exp(-1)), 0], [1 / total, np.exp(1) / total, 0], [0, 0, 0]]
    assert_allclose(weights, expected, atol=1e-5)


def test_gradient_of_the_null_and_no_large_arrays():
    """The null's gradient is the one of the plain formula; no array has the size of all pairs times features."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(2, 5, 3)).astype(np.float32)
    mask = np.arange(5) < np.array([[5], [4]])
    model = SelfAttention()
    params = jax.jit(model.init)(jax.random.key(0), inputs, mask)["params"]

    def plain(params):
        scores = params["scores"]
        pairs = jnp.einsum("btd,bsd,d->bts", inputs, inputs, scores["product"])
        pairs = pairs + (inputs @ scores["first"])[:, :, None] + (inputs @ scores["second"])[:, None] + scores["bias"]
        weights = jnp.exp(pairs) * mask[:, None] * mask[..., None] * (1 - np.eye(5))
        seen = weights / (weights.sum(-1, keepdims=True) + jnp.exp(params["null"])) @ inputs
        return jnp.sum(jnp.sin(jnp.concatenate([seen, inputs, seen * inputs], -1)))

    def mine(params):
        return jnp.sum(jnp.sin(model.apply({"params": params}, inputs, mask)))

    actual, expected = (jax.jit(jax.value_and_grad(f))(params) for f in (mine, plain))
    jax.tree.map(partial(assert_allclose, rtol=1e-4, atol=1e-5), actual, expected)
    jaxpr = jax.make_jaxpr(jax.grad(mine))(params)
    assert max(out.aval.size for equation in jaxpr.eqns for out in equation.outvars) <= 2 * 5 * 9
