"""Tests that dropout has the numbers of Flax's, and that they are made where they are used."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from elmo_jax.model.dropout import Dropout, bernoulli, dropped

KEY = jax.random.key(7)


@pytest.mark.parametrize("probability", [0.0, 1e-7, 0.1, 0.3, 0.5, 0.7, 0.999999, 1.0])
@pytest.mark.parametrize("shape", [(), (1,), (257,), (3, 5, 7), (64, 1, 300), (0, 4)])
def test_bernoulli_is_that_of_jax(shape, probability):
    actual = bernoulli(KEY, probability, shape)
    expected = jax.random.bernoulli(KEY, probability, shape)
    assert actual.dtype == expected.dtype
    assert np.array_equal(actual, expected)


@pytest.mark.parametrize("seed", range(20))
def test_bernoulli_is_that_of_jax_for_any_key(seed):
    key = jax.random.split(jax.random.fold_in(KEY, seed), 3)[2]
    assert np.array_equal(bernoulli(key, 0.4, (1000,)), jax.random.bernoulli(key, 0.4, (1000,)))


def test_keys_of_other_kinds():
    for key in (jax.random.PRNGKey(3), jax.random.key(3, impl="rbg"), jax.random.key(3, impl="unsafe_rbg")):
        assert np.array_equal(bernoulli(key, 0.4, (99,)), jax.random.bernoulli(key, 0.4, (99,)))
    with jax.threefry_partitionable(False):
        assert np.array_equal(bernoulli(KEY, 0.4, (99,)), jax.random.bernoulli(KEY, 0.4, (99,)))


@pytest.mark.parametrize("axes", [(), (1,), (0, 1)])
def test_dropout_and_its_gradient_are_those_of_flax(axes):
    inputs = jax.random.normal(jax.random.key(1), (4, 6, 33))
    theirs = nn.Dropout(0.3, broadcast_dims=axes, deterministic=False)

    def run(function):
        def loss(inputs):
            outputs = function(inputs)
            return (outputs**2).sum(), outputs

        return jax.jit(jax.grad(loss, has_aux=True))(inputs)

    actual = run(lambda x: dropped(x, 0.3, KEY, axes))
    expected = run(lambda x: theirs.apply({}, x, rng=KEY))
    for ours, original in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert np.array_equal(ours, original)


def test_the_module_draws_the_key_that_flax_draws():
    inputs = jnp.ones((4, 33))
    ours, theirs = (
        layer.apply({}, inputs, deterministic=False, rngs={"dropout": KEY}) for layer in (Dropout(0.3), nn.Dropout(0.3))
    )
    assert np.array_equal(ours, theirs)
    assert (ours == 0).any()
    assert (Dropout(0.3).apply({}, inputs, deterministic=True) == inputs).all()
    assert (Dropout(0.0).apply({}, inputs, deterministic=False) == inputs).all()


def test_without_a_key_nothing_is_dropped():
    ones = jnp.ones((2, 300))
    assert dropped(ones, 0.5, None) is ones
    assert (np.asarray(dropped(ones, 0.5, KEY)) == 0).mean() == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_rates_outside_their_range_are_refused(rate):
    with pytest.raises(ValueError, match="rate of dropout"):
        Dropout(rate).apply({}, jnp.ones((2, 3)), deterministic=False, rngs={"dropout": KEY})


def test_rows_on_eight_devices_have_the_same_mask_and_exchange_nothing():
    mesh = Mesh(np.array(jax.devices()[:8]), ("rows",))
    rows = NamedSharding(mesh, PartitionSpec("rows"))
    inputs = jax.device_put(jnp.ones((16, 5, 9)), rows)
    program = jax.jit(lambda x: dropped(x, 0.3, KEY), out_shardings=rows).lower(inputs).compile()
    assert np.array_equal(program(inputs), dropped(jnp.ones((16, 5, 9)), 0.3, KEY))
    text = program.as_text()
    assert not any(exchange in text for exchange in ("all-gather", "all-reduce", "all-to-all", "collective-permute"))


def test_the_numbers_are_made_without_a_loop():
    """JAX's own numbers are made in a loop on a CPU, which is what takes the time."""
    inputs = jnp.ones((8, 100))
    ours = jax.jit(lambda x, key: dropped(x, 0.3, key)).lower(inputs, KEY).compile().as_text()
    assert " while(" not in ours


def test_64_bit_types():
    with jax.enable_x64(True):
        assert np.array_equal(bernoulli(KEY, 0.4, (99,)), jax.random.bernoulli(KEY, 0.4, (99,)))
