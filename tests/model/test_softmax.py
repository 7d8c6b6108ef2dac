"""Tests the softmax against TensorFlow's numbers and against the plain form."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.model.precision import Precision
from elmo_jax.model.softmax import full_softmax_losses, log_expected_count, logits, sampled_softmax_losses

pytestmark = pytest.mark.quick

ORACLE = Path(__file__).parents[1] / "oracles" / "sampled_softmax" / "oracle.npz"


def test_sampled_softmax_meets_tensorflow():
    oracle = {name: jnp.asarray(value) for name, value in np.load(ORACLE).items()}
    targets, negatives = oracle["targets"], oracle["sampled_ids"].astype(jnp.int32)
    assert int((targets[:, None] == negatives).sum()) == 51  # accidental hits
    log_expected = (jnp.log(oracle["true_expected_count"]), jnp.log(oracle["sampled_expected_count"]))

    def losses(weight, bias, hidden):
        return sampled_softmax_losses(
            hidden,
            (weight[targets], bias[targets]),
            (weight[negatives], bias[negatives]),
            targets,
            negatives,
            log_expected,
        )

    arguments = (oracle["weight"], oracle["bias"], oracle["hidden"])
    assert_allclose(losses(*arguments), oracle["loss"], atol=1e-5)
    gradients = jax.grad(lambda *a: jnp.mean(losses(*a)), (0, 1, 2))(*arguments)
    for mine, name in zip(gradients, ("grad_weight", "grad_bias", "grad_hidden"), strict=True):
        assert_allclose(mine, oracle[name], atol=1e-7)


def test_full_softmax_meets_tensorflow_in_any_chunks():
    oracle = {name: jnp.asarray(value) for name, value in np.load(ORACLE).items()}
    for chunk in (500, 499, 128, 7, 10_000):  # V = 500
        losses = full_softmax_losses(oracle["hidden"], oracle["weight"], oracle["bias"], oracle["targets"], chunk)
        assert_allclose(losses, oracle["full_loss"], atol=1e-5)


def test_full_softmax_gradients_equal_the_plain_form():
    keys = jax.random.split(jax.random.key(0), 3)
    hidden, kernel, bias = (jax.random.normal(k, s) for k, s in zip(keys, ((6, 4), (11, 4), (11,)), strict=True))
    targets = jnp.array([0, 3, 10, 10, 7, 1])

    def plain(hidden, kernel, bias):
        return -jnp.sum(jax.nn.log_softmax(hidden @ kernel.T + bias)[jnp.arange(6), targets])

    def mine(hidden, kernel, bias):
        return jnp.sum(full_softmax_losses(hidden, kernel, bias, targets, 4))

    for a, b in zip(
        jax.grad(mine, (0, 1, 2))(hidden, kernel, bias), jax.grad(plain, (0, 1, 2))(hidden, kernel, bias), strict=True
    ):
        assert_allclose(a, b, atol=1e-5)


def test_expected_counts_equal_float64_at_the_size_of_1_billion_word():
    vocabulary, num_draws = 793_471, 16_050
    ids = np.array([0, 1, 10, 1000, 100_000, 793_470])
    probability = np.log((ids + 2) / (ids + 1)) / np.log(vocabulary + 1)
    expected = np.log(-np.expm1(num_draws * np.log1p(-probability)))
    mine = log_expected_count(jnp.asarray(ids), jnp.float32(num_draws), vocabulary)
    assert_allclose(mine, expected, atol=1e-5)


def test_a_row_whose_only_negative_is_its_target_has_no_loss():
    row = jnp.ones((1, 2))
    losses = sampled_softmax_losses(
        row, (row, jnp.zeros(1)), (row, jnp.zeros(1)), jnp.array([5]), jnp.array([5]), (jnp.zeros(1), jnp.zeros(1))
    )
    assert_allclose(losses, [0.0])


def test_bfloat16_normaliser_is_float32():
    hidden = jnp.ones((2, 8))
    kernel = jnp.ones((1000, 8)) * 1.001
    losses = full_softmax_losses(hidden, kernel, jnp.zeros(1000), jnp.array([1, 2]), 300, Precision.BFLOAT16)
    assert losses.dtype == jnp.float32
    assert_allclose(losses, np.log(1000), atol=0.02)


def test_gradients_of_logits_are_rounded_only_as_operands_of_products():
    hidden, rows, weights = (
        jax.random.normal(jax.random.key(n), shape) for n, shape in enumerate([(6, 5), (4, 5), (6, 4)])
    )
    rounded = [np.asarray(x.astype(jnp.bfloat16), np.float64) for x in (hidden, rows, weights)]
    loss = lambda h, r: jnp.sum(logits(h, r, Precision.BFLOAT16) * weights)  # noqa: E731
    actual = jax.jit(jax.grad(loss, (0, 1)))(hidden, rows)
    assert_allclose(actual[0], rounded[2] @ rounded[1], rtol=1e-5)
    assert_allclose(actual[1], rounded[2].T @ rounded[0], rtol=1e-5)
    assert actual[0].dtype == actual[1].dtype == jnp.float32
