"""The projected LSTM against the plain form: a step as the paper writes it, and autodiff through the scan."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.model import reference
from elmo_jax.model.lstm import LSTMSettings, State, inference_step, projected_lstm
from elmo_jax.model.precision import Precision

STEPS, ROWS, INPUT, CELLS = 6, 3, 5, 7


def problem(projection):
    keys = iter(jax.random.split(jax.random.key(3), 20))

    def normal(*shape):
        return jax.random.normal(next(keys), shape)

    size = projection or CELLS
    params = {"kernel": normal(INPUT + size, 4 * CELLS), "bias": normal(4 * CELLS)}
    if projection:
        params["projection"] = normal(CELLS, projection)
    state = State(normal(ROWS, CELLS), 0.5 * normal(ROWS, size))
    weights = (normal(STEPS, ROWS, size), normal(ROWS, CELLS), normal(ROWS, size))
    return params, normal(STEPS, ROWS, INPUT), state, weights


@pytest.mark.parametrize(
    ("masked", "restarted"),
    [
        (False, False),
        (True, False),
        (False, True),
        (True, True),
    ],
)
@pytest.mark.parametrize(
    ("projection", "cell_clip", "projection_clip"), [(4, 3.0, 3.0), (4, 0.5, 0.4), (4, 0.0, 0.0), (0, 0.7, 0.0)]
)
def test_equals_the_plain_form_gradients_included(projection, cell_clip, projection_clip, masked, restarted):
    params, inputs, state, weights = problem(projection)
    settings = LSTMSettings(cell_clip, projection_clip, Precision.FLOAT32)
    lengths = np.array([6, 2, 4])
    mask = jnp.asarray(np.arange(STEPS)[:, None] < lengths) if masked else jnp.ones((STEPS, ROWS), bool)
    reset_state = jnp.zeros((STEPS, ROWS), bool)
    if restarted:
        reset_state = reset_state.at[0, 1].set(True).at[3, 0].set(True).at[5, 2].set(True)

    def mine(params, inputs, state):
        masks = (mask if masked else None, reset_state if restarted else None)
        return projected_lstm(params, inputs, state, settings, *masks)

    def plain(params, inputs, state):
        return reference.lstm_layer(
            params, inputs, state, settings.cell_clip, settings.projection_clip, mask, reset_state
        )

    def loss(run, *arguments):
        outputs, last = run(*arguments)
        return sum(jnp.sum(a * b) for a, b in zip((outputs, *last), weights, strict=True)), (outputs, last)

    (actual, gradient), (expected, plain_gradient) = (
        jax.jit(jax.grad(functools.partial(loss, run), (0, 1, 2), has_aux=True))(params, inputs, state)[::-1]
        for run in (mine, plain)
    )
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-5), actual, expected)
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-5, rtol=1e-5), gradient, plain_gradient)
    if cell_clip == 0.5:  # the test is meaningful only if values were clipped
        outputs, last = actual
        assert np.any(np.abs(last.cell) == 0.5) and np.any(np.abs(outputs) == np.float32(0.4))


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("projection", [4, 0])
def test_steps_of_inference_give_the_same(projection, columns):
    params, inputs, state, _ = problem(projection)
    settings = LSTMSettings(3.0, 3.0 if projection else 0.0, Precision.FLOAT32)
    expected, last = projected_lstm(params, inputs, state, settings)
    turned = (lambda tree: jax.tree.map(jnp.transpose, tree)) if columns else lambda tree: tree
    matrices, state = turned(params), turned(State(*state))
    if columns:
        matrices["bias"] = params["bias"][:, None]
    for x, output in zip(inputs, expected, strict=True):
        state = inference_step(matrices, turned(x), state, settings, columns)
        assert_allclose(turned(state.hidden), output, atol=1e-5)
    assert_allclose(turned(state.cell), last.cell, atol=1e-5)


def test_two_halves_equal_the_whole():
    params, inputs, state, _ = problem(4)
    settings = LSTMSettings(3.0, 3.0, Precision.FLOAT32)
    whole, last = projected_lstm(params, inputs, state, settings)
    first, middle = projected_lstm(params, inputs[:2], state, settings)
    second, end = projected_lstm(params, inputs[2:], middle, settings)
    assert_allclose(jnp.concatenate([first, second]), whole, atol=1e-5)
    assert_allclose(end.cell, last.cell, atol=1e-5)


def test_bfloat16_is_near_float32_and_keeps_float32_states():
    params, inputs, state, _ = problem(4)
    exact, _ = projected_lstm(params, inputs, state, LSTMSettings(3.0, 3.0, Precision.FLOAT32))
    rounded, last = projected_lstm(params, inputs, state, LSTMSettings(3.0, 3.0, Precision.BFLOAT16))
    assert rounded.dtype == last.cell.dtype == jnp.float32
    difference = np.abs(exact - rounded).max()
    assert 1e-4 < difference < 0.055  # rounded, but not far off


@pytest.mark.parametrize("projection", [4, 0])
def test_numbers_that_loops_store_as_bits_are_the_same(projection):
    params, inputs, state, weights = problem(projection)

    def gradients(bits):
        settings = LSTMSettings(3.0, 3.0, Precision.BFLOAT16, bf16_as_uint16=bits)
        loss = lambda p, x: jnp.sum(projected_lstm(p, x, state, settings)[0] * weights[0])  # noqa: E731
        return jax.make_jaxpr(jax.grad(loss))(params, inputs), jax.jit(jax.value_and_grad(loss, (0, 1)))(params, inputs)

    (program, actual), (plain_program, expected) = gradients(True), gradients(False)
    assert "u16[" in str(program) and "u16[" not in str(plain_program)
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-5, atol=1e-5), actual, expected)


def test_bfloat16_gradients_are_near_those_of_float32():
    """Gates are rounded for the backward pass, cells and the sum of the bias's gradient are not."""
    params, inputs, state, weights = problem(4)

    def gradients(precision):
        settings = LSTMSettings(3.0, 3.0, precision)
        loss = lambda p, x: jnp.sum(projected_lstm(p, x, state, settings)[0] * weights[0])  # noqa: E731
        return jax.jit(jax.grad(loss, (0, 1)))(params, inputs)

    exact, rounded = gradients(Precision.FLOAT32), gradients(Precision.BFLOAT16)
    for a, b in zip(jax.tree.leaves(rounded), jax.tree.leaves(exact), strict=True):
        assert a.dtype == jnp.float32
        assert 1e-4 < np.linalg.norm(a - b) / np.linalg.norm(b) < 0.03


@pytest.mark.parametrize(
    "derivative",
    [
        lambda f: jax.vmap(jax.grad(f), (0, None)),
        lambda f: jax.vmap(jax.jacrev(f), (0, None)),
        lambda f: jax.vmap(
            jax.grad(lambda p, x: sum(jnp.sum(d**2) for d in jax.tree.leaves(jax.grad(f)(p, x)))), (0, None)
        ),
        lambda f: lambda p, x: jax.vmap(lambda p: jax.jvp(lambda p: jax.grad(f)(p, x), (p,), (p,))[1])(p),
    ],
    ids=["gradient", "jacobian", "gradient of a gradient", "forward over reverse"],
)
def test_further_derivatives_of_two_directions_equal_those_of_each(derivative):
    params, inputs, state, weights = problem(4)
    settings = LSTMSettings(3.0, 3.0, Precision.FLOAT32)
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), params)

    def loss(params, inputs):
        return jnp.sum(weights[0] * projected_lstm(params, inputs, state, settings)[0])

    derived = jax.jit(derivative(loss))
    together = derived(both, inputs)
    for d in range(2):
        alone = derived(jax.tree.map(lambda leaf, d=d: leaf[d : d + 1], both), inputs)
        jax.tree.map(lambda t, a, d=d: assert_allclose(t[d], a[0], rtol=1e-5, atol=1e-5), together, alone)
