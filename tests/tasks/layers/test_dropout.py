"""Tests dropout with one mask per row and with one mask per word."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from elmo_jax.model.dropout import Dropout, variational_mask

ROWS, STEPS, FEATURES = 3, 5, 40


@pytest.mark.parametrize("kind", ["variational", "plain"])
def test_masks(kind):
    ones = jnp.ones((ROWS, STEPS, FEATURES))
    layer = Dropout(0.25, kind)
    actual = np.asarray(layer.apply({}, ones, deterministic=False, rngs={"dropout": jax.random.key(0)}))
    kept = np.float32(1 / 0.75)
    assert set(np.unique(actual)) == {0, kept}
    assert abs((actual[:, 0] == 0).mean() - 0.25) < 0.12
    assert (actual == actual[:, :1]).all() == (kind == "variational")
    assert not (actual[0] == actual[1]).all()
    assert (layer.apply({}, ones, deterministic=True) == ones).all()


def test_variational_needs_steps():
    with pytest.raises(ValueError, match="variational"):
        Dropout(0.5, "variational").apply({}, jnp.ones((2, 3)), deterministic=True)


def test_the_mask_of_recurrent_layers_is_scaled_and_of_the_given_shape():
    mask = np.asarray(variational_mask(jax.random.key(1), 0.25, (2, 300, 41)))
    assert mask.shape == (2, 300, 41)
    assert set(np.unique(mask)) == {0, np.float32(1 / 0.75)}
    assert mask.mean() == pytest.approx(1, abs=0.02)
