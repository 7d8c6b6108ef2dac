"""Tests the chunked encoder against the plain form: one convolution per filter over all positions, and autodiff."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.characters import PADDING
from elmo_jax.config import CharCNNConfig
from elmo_jax.model import reference
from elmo_jax.model.bilm import TokenEncoder
from elmo_jax.model.char_cnn import EncoderSettings, add_one_by_one, add_product, add_rows, encode_words
from elmo_jax.model.precision import Precision

WIDTHS = ((1, 4), (2, 5), (3, 6), (5, 7), (7, 8))
POSITIONS, EMBEDDING, PROJECTION = 50, 3, 9


def random_words(rng, lengths):
    characters = np.full((len(lengths), POSITIONS), PADDING, np.int32)
    for row, length in zip(characters, lengths, strict=True):
        row[0], row[1 : length + 1], row[length + 1] = 258, rng.integers(0, 256, length), 259
    return jnp.asarray(characters)


def random_params(encoder, characters, seed=0):
    """Returns random parameters, also for the biases, which start at zero."""
    params = jax.jit(encoder.init)(jax.random.key(seed), characters)["params"]
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noisy = [leaf + 0.3 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, noisy)


@pytest.mark.parametrize(
    ("activation", "highways", "projection", "chunk", "lengths"),
    [
        ("relu", 1, PROJECTION, 4, range(1, 12)),  # several chunks, the last of which is partly filled
        ("relu", 2, PROJECTION, 16, [1, 48, 3, 48, 20]),  # words that fill all positions; unsorted; one chunk
        (
            "tanh",
            1,
            PROJECTION,
            3,
            [44, 2, 43, 42, 1, 41, 40],
        ),  # lengths around the end of the last window of padding alone
        ("relu", 0, sum(number for _, number in WIDTHS), 5, range(1, 8)),  # neither highway nor projection
    ],
)
def test_equals_the_plain_form_gradients_included(activation, highways, projection, chunk, lengths):
    config = CharCNNConfig(EMBEDDING, WIDTHS, highways, activation, POSITIONS)
    characters = random_words(np.random.default_rng(0), list(lengths))
    encoder = TokenEncoder(config, projection, chunk=chunk)
    params = random_params(encoder, characters)
    weight = jax.random.normal(jax.random.key(9), (len(characters), projection))

    def loss(params):
        vectors = encoder.apply({"params": params}, characters)
        return jnp.sum(vectors * weight), vectors

    def plain_loss(params):
        vectors = reference.encode(params, characters, config, projection)
        return jnp.sum(vectors * weight), vectors

    actual, vectors = jax.jit(jax.grad(loss, has_aux=True))(params)
    plain, expected = jax.jit(jax.grad(plain_loss, has_aux=True))(params)
    assert_allclose(vectors, expected, atol=1e-5, rtol=1e-5)
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-5, rtol=1e-5), actual, plain)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(plain))


def test_words_past_the_count_are_zero_and_have_no_gradient():
    config = CharCNNConfig(EMBEDDING, WIDTHS, 1, "relu", POSITIONS)
    characters = random_words(np.random.default_rng(1), [2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    params = random_params(TokenEncoder(config, PROJECTION), characters)
    settings = EncoderSettings(config, PROJECTION, Precision.FLOAT32, chunk=4)

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def chunked(params, count):
        vectors = encode_words(params, characters, count, settings)
        return jnp.sum(vectors**2), vectors

    @jax.jit
    @jax.grad
    def plain(params, count):
        vectors = reference.encode(params, characters, config, PROJECTION)
        return jnp.sum(jnp.where((jnp.arange(len(characters)) < count)[:, None], vectors, 0) ** 2)

    for count in (0, 1, 4, 5, 10):
        mine, vectors = chunked(params, jnp.asarray(count))
        assert np.all(vectors[count:] == 0)
        assert np.all(np.abs(vectors[:count]).sum(1) > 0)
        all_real = plain(params, jnp.asarray(count))
        jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-4, rtol=1e-5), mine, all_real)


def test_a_word_has_the_same_vector_in_any_batch():
    config = CharCNNConfig(EMBEDDING, WIDTHS, 1, "relu", POSITIONS)
    characters = random_words(np.random.default_rng(2), [5, 2, 40, 9, 48])
    encoder = TokenEncoder(config, PROJECTION, chunk=2)
    params = random_params(encoder, characters)
    apply = jax.jit(encoder.apply)
    together = apply({"params": params}, characters)
    for i in range(len(characters)):
        alone = apply({"params": params}, characters[i : i + 1])
        assert_allclose(alone[0], together[i], atol=1e-5)


def test_initial_values_are_those_of_the_original():
    config = CharCNNConfig(16, ((1, 32), (7, 1024)), 1, "relu", POSITIONS)
    params = jax.jit(TokenEncoder(config, 512).init)(jax.random.key(0), jnp.zeros((1, POSITIONS), jnp.int32))["params"]
    assert np.abs(params["char_embedding"]).max() == pytest.approx(1, abs=0.001)
    assert np.abs(params["filter_1"]["kernel"]).max() == pytest.approx(0.05, abs=1e-5)
    assert np.std(params["highway_0"]["carry"]["kernel"]) == pytest.approx(1056**-0.5, rel=0.004)
    assert np.all(params["highway_0"]["carry"]["bias"] == -2)
    assert np.all(params["highway_0"]["transform"]["bias"] == 0)
    assert np.std(params["projection"]["kernel"]) == pytest.approx(1056**-0.5, rel=0.004)
    tanh = TokenEncoder(CharCNNConfig(16, ((7, 1024),), 0, "tanh", POSITIONS), 512)
    kernel = jax.jit(tanh.init)(jax.random.key(0), jnp.zeros((1, POSITIONS), jnp.int32))["params"]["filter_0"]["kernel"]
    assert np.std(kernel) == pytest.approx((7 * 16) ** -0.5, rel=0.01)


def test_rows_are_added_the_same_on_a_cpu_and_on_an_accelerator():
    rng = np.random.default_rng(3)
    table, ids = rng.normal(size=(7, 4)).astype(np.float32), rng.integers(0, 9, 200)  # 7 and 8 are left out
    vectors = rng.normal(size=(200, 4)).astype(np.float32)
    expected = table.astype(np.float64)
    for row, vector in zip(ids, vectors, strict=True):
        if row < 7:
            expected[row] += vector
    for add in (add_one_by_one, add_product):
        assert_allclose(add(jnp.asarray(table), jnp.asarray(ids), jnp.asarray(vectors)), expected, atol=1e-5)
    shaped = add_rows(jnp.asarray(table), jnp.asarray(ids).reshape(20, 10), jnp.asarray(vectors).reshape(20, 40))
    assert_allclose(shaped, expected, atol=1e-5)
