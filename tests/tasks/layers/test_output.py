"""Tests dense layers, maxout and the loss of classes against their equations."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose

from elmo_jax.tasks.layers.dense import Dense, mean_cross_entropy
from elmo_jax.tasks.sst.task import Maxout


def test_maxout_is_the_maximum_of_linear_functions():
    inputs = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    model = Maxout((5, 2), (0.5, 0.0), pool=4)
    variables = jax.jit(model.init)(jax.random.key(0), inputs)
    x = inputs
    for i, size in enumerate((5, 2)):
        kernel, bias = (np.asarray(variables["params"][f"dense_{i}"][name]) for name in ("kernel", "bias"))
        pieces = [x @ kernel[:, piece::4] + bias[piece::4] for piece in range(4)]
        x = np.max(pieces, axis=0)
        assert x.shape == (3, size)

    @jax.jit
    def apply(variables):
        key = {"dropout": jax.random.key(1)}
        return model.apply(variables, inputs), model.apply(variables, inputs, deterministic=False, rngs=key)

    actual, dropped = apply(variables)
    assert_allclose(actual, x, atol=1e-5)
    assert np.abs(dropped - x).max() > 1e-3


def test_cross_entropy_of_rows_that_exist():
    logits = np.array([[1.0, 2.0, 0.5], [3.0, -1.0, 0.0], [1e9, -1e9, 0.0]], np.float32)
    labels, real = np.array([2, 0, -1]), np.array([True, True, False])
    probabilities = np.exp(logits[:2]) / np.exp(logits[:2]).sum(1, keepdims=True)
    loss, grad = jax.jit(jax.value_and_grad(mean_cross_entropy))(logits, labels, real)
    assert_allclose(loss, -np.log(probabilities[[0, 1], [2, 0]]).mean(), rtol=1e-5)
    assert_allclose(grad, np.vstack([probabilities - np.eye(3)[[2, 0]], np.zeros(3)]) / [[2], [2], [1]], atol=1e-5)
    assert mean_cross_entropy(logits, labels, np.zeros(3, bool)) == 0


def test_initial_values_of_dense_layers():
    def params(initial):
        return jax.jit(Dense(300, initial).init)(jax.random.key(0), jnp.zeros((1, 100)))["params"]

    torch, xavier = params("torch"), params("xavier")
    assert 0.099 < np.abs(torch["kernel"]).max() <= 0.1 and 0.09 < np.abs(torch["bias"]).max() <= 0.1
    bound = (6 / 400) ** 0.5
    assert 0.99 * bound < np.abs(xavier["kernel"]).max() <= bound and not np.asarray(xavier["bias"]).any()
