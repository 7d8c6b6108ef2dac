"""Tests the LSTM layers and their gradients against a plain loop over the words of each row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.tasks.layers import recurrent
from elmo_jax.tasks.layers.recurrent import LSTM, BiLSTM, BiLSTMStack
from tests.tasks import weights
from tests.tasks.oracle_cases import read_case

ROWS, STEPS, INPUT, UNITS = 4, 6, 5, 3
LENGTHS = (4, 6, 0, 1)


def problem():
    random = np.random.default_rng(0)

    def normal(*shape):
        return random.normal(size=shape).astype(np.float32)

    params = {"kernel": normal(INPUT + UNITS, 4 * UNITS), "bias": normal(4 * UNITS)}
    mask = np.arange(STEPS) < np.asarray(LENGTHS)[:, None]
    return params, normal(ROWS, STEPS, INPUT), mask, normal(ROWS, STEPS, UNITS)


def loop(params, inputs, direction):
    """Computes the equations of the LSTM over the words of each row."""
    rows = []
    for row, length in zip(inputs, LENGTHS, strict=True):
        hidden = cell = jnp.zeros(UNITS)
        outputs = [jnp.zeros(UNITS)] * STEPS
        steps = range(length) if direction == "forward" else reversed(range(length))
        for t in steps:
            i, g, f, o = jnp.split(jnp.concatenate([row[t], hidden]) @ params["kernel"] + params["bias"], 4)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            outputs[t] = hidden
        rows.append(jnp.stack(outputs))
    return jnp.stack(rows)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_equals_a_plain_loop_gradients_included(direction):
    params, inputs, mask, cotangent = problem()

    def mine(params, inputs):
        return LSTM(UNITS, direction).apply({"params": params}, inputs, mask)

    @jax.jit
    def both(params, inputs):
        actual = []
        for run in (mine, lambda p, x: loop(p, x, direction)):
            outputs, back = jax.vjp(run, params, inputs)
            actual.append((outputs, back(cotangent)))
        return actual

    (outputs, grads), (expected, expected_grads) = both(params, inputs)
    assert_allclose(outputs, expected, atol=1e-5)
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-5), grads, expected_grads)
    assert not np.asarray(outputs)[~mask].any() and not np.asarray(grads[1])[~mask].any()
    assert np.abs(np.asarray(outputs)[mask]).min() > 0


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    ("cell", "blocks", "of_state"),
    [("lstm_cell", 4, 4), ("highway_cell", 6, 5), ("coupled_cell", 3, 3), ("gru_cell", 4, 3)],
)
def test_backward_pass_of_each_cell_equals_autodiff(cell, blocks, of_state, direction):
    """With two directions, dropout and initial states."""
    random = np.random.default_rng(1)

    def normal(*shape):
        return random.normal(size=shape).astype(np.float32)

    cell, layers, states = getattr(recurrent, cell), 2, 1 if cell == "gru_cell" else 2
    matrix, read = normal(layers, UNITS, of_state * UNITS), normal(STEPS, layers, ROWS, blocks * UNITS)
    start = tuple(normal(layers, ROWS, UNITS) for _ in range(states))
    real = (np.arange(STEPS)[:, None] < np.asarray(LENGTHS))[:, None, :, None]
    dropout = 2 * random.integers(0, 2, (layers, ROWS, UNITS)).astype(np.float32)
    cotangent = normal(STEPS, layers, ROWS, UNITS)

    def plainly(matrix, read, state):
        outputs = [jnp.zeros((layers, ROWS, UNITS))] * STEPS
        for t in range(STEPS) if direction == "forward" else reversed(range(STEPS)):
            product = jnp.einsum("lbh,lhz->lbz", state[-1] * dropout, matrix)
            new = cell(read[t].at[..., : product.shape[-1]].add(product), state)
            state = tuple(jnp.where(real[t], n, old) for n, old in zip(new, state, strict=True))
            outputs[t] = jnp.where(real[t], state[-1], 0)
        return jnp.stack(outputs)

    def scanned(matrix, read, state):
        return recurrent.recurrence(cell, direction, matrix, read, state, real, dropout)

    @jax.jit
    def both(*arrays):
        results = [jax.vjp(run, *arrays) for run in (scanned, plainly)]
        return [(outputs, back(cotangent)) for outputs, back in results]

    actual, expected = both(matrix, jnp.asarray(read), start)
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-5, rtol=1e-5), actual, expected)


def test_stack_reads_both_directions_of_the_layer_below():
    _, inputs, mask, _ = problem()
    model = BiLSTMStack((UNITS, 2), dropout=0.5)
    variables = jax.jit(model.init)(jax.random.key(0), inputs, mask)
    lower, upper = (variables["params"][f"layer_{i}"] for i in range(2))

    @jax.jit
    def plainly(lower, upper):
        x = BiLSTM(UNITS).apply({"params": lower}, inputs, mask)
        return BiLSTM(2).apply({"params": upper}, x, mask)

    @jax.jit
    def apply(variables):
        key = {"dropout": jax.random.key(1)}
        return model.apply(variables, inputs, mask), model.apply(variables, inputs, mask, deterministic=False, rngs=key)

    actual, dropped = apply(variables)
    assert actual.shape == (ROWS, STEPS, 4)
    assert_allclose(actual, plainly(lower, upper), atol=1e-5)
    assert np.abs(dropped - actual).max() > 1e-3


def test_equals_pytorch():
    """The encoder of an oracle, whose gates and two biases are PyTorch's."""
    case = read_case("esim.npz", "ragged")
    table = case["param"]["_text_field_embedder.token_embedder_tokens.weight"]
    params = weights.bilstm(case["param"], "_encoder._module")
    inputs, mask = table[case["input"]["premise"]], case["input"]["premise_mask"] > 0
    actual = jax.jit(BiLSTM(4).apply)({"params": params}, inputs, mask)
    weights.close(actual, case["output"]["encoded_premise"])


def test_initial_values():
    inputs, mask = jnp.zeros((1, 2, 50)), jnp.ones((1, 2), bool)
    size = 40

    def params(initial):
        return jax.jit(LSTM(size, initial=initial).init)(jax.random.key(0), inputs, mask)["params"]

    torch, xavier = params("torch"), params("xavier")
    bound = size**-0.5
    assert 0.99 * bound < np.abs(torch["kernel"]).max() <= bound
    assert bound < np.abs(torch["bias"]).max() <= 2 * bound  # the sum of two uniform numbers
    assert_allclose(np.std(torch["bias"]), bound * (2 / 3) ** 0.5, rtol=0.035)
    read, fed_back = np.split(np.asarray(xavier["kernel"]), [50])
    bound = (6 / (50 + 4 * size)) ** 0.5
    assert 0.99 * bound < np.abs(read).max() <= bound
    assert_allclose(fed_back @ fed_back.T, np.eye(size), atol=1e-5)
    i, g, f, o = np.split(np.asarray(xavier["bias"]), 4)
    assert (f == 1).all() and not i.any() and not g.any() and not o.any()
