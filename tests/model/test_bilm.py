"""The whole biLM: the original's vectors, the two ways to run the directions, dropout, sizes."""

import dataclasses
import json
from functools import cache, partial
from pathlib import Path

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.checkpoints.hdf5 import read_hdf5
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.model.bilm import BiLM, LSTMForm, initial_carry, initial_params, parameter_count
from elmo_jax.model.lstm import State
from elmo_jax.model.precision import Precision

ORACLES = Path(__file__).parents[1] / "oracles" / "embedding"
SMALL = ModelConfig(CharCNNConfig(4, ((1, 4), (3, 6)), 1), LSTMConfig(cells=9, projection=5), dropout=0.3)


@partial(jax.jit, static_argnums=0)
def apply(bilm, params, characters, inputs, carry, **arguments):
    """Runs the biLM compiled."""
    return bilm.apply({"params": params}, characters, inputs, carry, **arguments)


def encode_chars(words, size):
    from elmo_jax.characters import encode_chars as encoded

    return encoded(words, size).astype(np.int32)


def run_padded(bilm, params, sentences, state, rows):
    """Runs sentences in one batch with marks, as the original; returns the layers [3, B, T, 2P] without the marks.

    All calls have the shapes of the largest one, and so one program.
    """
    size, longest = bilm.config.char_cnn.max_characters, 60
    characters, inputs, mask = [], np.zeros((2, longest, rows), np.int32), np.zeros((2, longest, rows), bool)
    for row, words in enumerate(sentences):
        marked = ["<S>", *words, "</S>"]
        for direction, order in enumerate((marked, marked[::-1])):
            for step in range(len(marked)):
                inputs[direction, step, row] = len(characters) + step
            mask[direction, : len(marked), row] = True
            characters += order
    count = len(characters)
    encoded = jnp.asarray(encode_chars(characters + ["</S>"] * (rows * longest - count), size))
    layers, state = apply(bilm, params, encoded, inputs, state, count=jnp.asarray(count), mask=mask)
    actual = []
    for row, words in enumerate(sentences):
        length = len(words) + 2
        forward = np.stack([layer[0, :length, row] for layer in layers])
        backward = np.stack([layer[1, :length, row][::-1] for layer in layers])
        actual.append(np.concatenate([forward, backward], -1)[:, 1:-1])
    return actual, state


@pytest.mark.parametrize("name", ["skip", "no_skip"])
def test_meets_the_originals_vectors_with_the_state_carried(name):
    config, params = read_hdf5(ORACLES / name / "options.json", ORACLES / name / "weights.hdf5")
    bilm = BiLM(config, encoder_chunk=8)
    rows = 5  # the largest call
    state = initial_carry(config, rows)
    errors = []
    with h5py.File(ORACLES / name / "expected.hdf5") as file:
        for call in sorted(file, key=int):
            sentences = json.loads(file[call].attrs["sentences"])
            actual, new = run_padded(bilm, params, sentences, state, rows)
            # rows of a smaller call leave the others' state untouched
            used = np.arange(rows) < len(sentences)
            state = jax.tree.map(lambda n, o: jnp.where(used[:, None], n, o), new, state)  # noqa: B023
            for i, vectors in enumerate(actual):
                expected = file[call][str(i)][...]
                errors.append(np.abs(vectors - expected).ravel())
    # With these random weights, some sentences are chaotic: the original's float32 differs by 2.3e-5 from exact
    # arithmetic (the same steps in float64), so no program can come closer.
    errors = np.concatenate(errors)
    assert np.mean(errors < 2e-6) > 0.98
    assert errors.max() < 3e-5


@cache
def start(config, vocabulary):
    """Returns the first parameters, computed once."""
    return jax.jit(lambda: initial_params(BiLM(config, vocabulary), jax.random.key(0)))()


def problem(config=SMALL, vocabulary=0):
    rng = np.random.default_rng(0)
    bilm = BiLM(config, vocabulary)
    params = jax.tree.map(jnp.copy, start(config, vocabulary or 7))
    characters = encode_chars([f"word{i}" for i in range(8)], config.char_cnn.max_characters)
    inputs = rng.integers(0, 8, (2, 4, 3)).astype(np.int32)
    carry = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) * 0.3, jnp.float32), initial_carry(config, 3))
    return bilm, params, characters, inputs, carry


@pytest.mark.parametrize(
    ("directions", "masked"),
    [
        (("forward", "backward"), False),
        (("forward", "backward"), True),
        (("forward",), True),
        pytest.param(("forward",), False, marks=pytest.mark.slow),
    ],
)
def test_directions_together_equal_apart(directions, masked):
    bilm, params, characters, inputs, carry = problem(dataclasses.replace(SMALL, directions=directions))
    inputs = inputs[: len(directions)]
    reset_state = np.array([[True, False, False], [False, False, True], [False, False, True], [False, True, False]])
    params = {name: tree for name, tree in params.items() if name != "softmax"}
    mask = np.arange(4)[None, :, None] < np.array([4, 2, 3]) if masked else None
    mask = None if mask is None else np.broadcast_to(mask, inputs.shape)

    @partial(jax.jit, static_argnums=1)
    @jax.value_and_grad
    def loss(params, form):
        layers, last = bilm.clone(form=form).apply(
            {"params": params}, characters, inputs, carry, mask=mask, reset_state=reset_state
        )
        return sum(jnp.sum(layer**2) for layer in layers) + sum(jnp.sum(x) for x in jax.tree.leaves(last))

    apart = loss(params, LSTMForm(together=False))
    together = loss(params, LSTMForm(together=True))
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-5, atol=1e-5), apart, together)


@pytest.mark.parametrize("all_distinct", [False, True])
def test_distinct_words_equal_every_token_encoded_by_itself(all_distinct):
    bilm, params, characters, inputs, carry = problem()
    if all_distinct:
        characters = encode_chars([f"word{i}" for i in range(inputs.size)], SMALL.char_cnn.max_characters)
        inputs = np.random.default_rng(1).permutation(inputs.size).reshape(inputs.shape).astype(np.int32)

    @jax.jit
    @jax.value_and_grad
    def loss(params, characters, inputs):
        layers, _ = apply(bilm, params, characters, inputs, carry)
        return sum(jnp.sum(layer**2) for layer in layers)

    once = loss(params, jnp.asarray(characters), inputs)
    every = jnp.asarray(characters)[inputs.reshape(-1)]  # [2TB, W]
    plain = loss(params, every, np.arange(inputs.size).reshape(inputs.shape))
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-5, atol=1e-5), once, plain)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(plain[1]["token_encoder"]))


def test_directions_do_not_see_each_other():
    bilm, params, characters, inputs, carry = problem()
    layers, _ = apply(bilm, params, characters, inputs, carry)
    changed = inputs.copy()
    changed[1] = 7 - changed[1]
    others, _ = apply(bilm, params, characters, changed, carry)
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(layers, others, strict=True))
    assert all(not np.allclose(a[1], b[1]) for a, b in zip(layers, others, strict=True))


def test_the_residual_adds_the_dropped_input():
    bilm, params, characters, inputs, carry = problem()
    for direction in ("forward", "backward"):  # a second layer that adds nothing: its output is the residual alone
        params[direction]["layer_1"] = jax.tree.map(jnp.zeros_like, params[direction]["layer_1"])

    @jax.jit
    def top(key):
        rngs = {"dropout": key}
        return bilm.apply({"params": params}, characters, inputs, carry, deterministic=False, rngs=rngs)[0][2]

    share = np.mean([np.asarray(top(jax.random.key(n))) == 0 for n in range(20)])
    assert share == pytest.approx(
        1 - 0.7**2, abs=0.01
    )  # units are dropped twice: at the layer's input and at the top output


def test_dropout_is_on_in_training_only():
    bilm, params, characters, inputs, carry = problem()
    first, state = apply(bilm, params, characters, inputs, carry)
    again, _ = apply(bilm, params, characters, inputs, carry)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))

    @jax.jit
    def dropped(key):
        return bilm.apply({"params": params}, characters, inputs, carry, deterministic=False, rngs={"dropout": key})[0]

    one, two = dropped(jax.random.key(1)), dropped(jax.random.key(2))
    assert_allclose(one[0], first[0], atol=1e-5)  # the token vectors themselves are not dropped
    assert not np.allclose(one[-1], two[-1])
    share = np.mean(np.asarray(one[-1]) == 0)
    assert 0.15 < share < 0.45  # of the top output, 0.3 expected


def test_no_skip_connections_is_another_model():
    bilm, params, characters, inputs, carry = problem()
    plain = ModelConfig(SMALL.char_cnn, LSTMConfig(cells=9, projection=5, skip_connections=False))
    with_skip, _ = apply(bilm, params, characters, inputs, carry)
    without, _ = apply(BiLM(plain), params, characters, inputs, carry)
    assert_allclose(with_skip[2], without[2] + without[1], atol=1e-5)


def test_bfloat16_is_near_float32():
    bilm, params, characters, inputs, carry = problem()
    exact, _ = apply(bilm, params, characters, inputs, carry)
    rounded, state = apply(bilm.clone(precision=Precision.BFLOAT16), params, characters, inputs, carry)
    assert all(layer.dtype == jnp.float32 for layer in rounded)
    assert isinstance(state["layer_0"], State) and state["layer_0"].cell.dtype == jnp.float32
    assert 1e-5 < np.abs(exact[-1] - rounded[-1]).max() < 0.0025


@pytest.mark.parametrize(
    ("cells", "projection", "highways", "parameters"),
    [(1024, 128, 1, 13_593_296), (2048, 256, 1, 28_027_728), (4096, 512, 2, 93_600_848)],
)
def test_published_sizes(cells, projection, highways, parameters):
    config = ModelConfig(CharCNNConfig(highways=highways), LSTMConfig(cells=cells, projection=projection))
    shapes = jax.eval_shape(lambda: initial_params(BiLM(config), jax.random.key(0)))
    assert parameter_count(shapes) == parameters
    with_softmax = jax.eval_shape(lambda: initial_params(BiLM(config, 793_471), jax.random.key(0)))
    assert parameter_count(with_softmax) == parameters + 793_471 * (projection + 1)
