"""Tests the layout of the softmax's rows in a training state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from elmo_jax.checkpoints.softmax_layout import (
    deinterleave,
    group_size,
    interleave,
    rows_of,
    stored_rows,
    without_padding,
    words_of,
)


@pytest.mark.parametrize("vocabulary", [3, 255, 256, 257, 1000])
def test_each_word_has_a_row_of_its_own_and_comes_back_bit_equal(vocabulary):
    kernel = np.arange(vocabulary * 3, dtype=np.float32).reshape(vocabulary, 3) + 1
    tree = {"other": 7, "softmax": {"kernel": kernel, "bias": kernel[:, 0].copy()}}
    interleaved = interleave(tree)
    rows = np.asarray(rows_of(jnp.arange(vocabulary), vocabulary))
    assert interleaved["softmax"]["kernel"].shape == (stored_rows(vocabulary), 3)
    assert np.array_equal(interleaved["softmax"]["kernel"][rows], kernel)
    assert np.array_equal(interleaved["softmax"]["bias"][rows], kernel[:, 0])
    assert np.sum(interleaved["softmax"]["bias"] != 0) == vocabulary  # padding is zero
    assert np.array_equal(words_of(rows, vocabulary), np.arange(vocabulary))
    back = deinterleave(interleaved, vocabulary)
    assert back["other"] == 7
    for name in ("kernel", "bias"):
        assert isinstance(back["softmax"][name], np.ndarray)
        assert np.array_equal(back["softmax"][name], tree["softmax"][name])
    on_device = interleave({"softmax": jax.tree.map(jnp.asarray, tree["softmax"])})["softmax"]
    assert isinstance(on_device["kernel"], jax.Array) and np.array_equal(
        on_device["bias"], interleaved["softmax"]["bias"]
    )


def test_an_array_in_the_order_of_the_vocabulary_never_has_the_shape_of_an_interleaved_one():
    assert all(stored_rows(vocabulary) > vocabulary for vocabulary in range(1, 1000))


def test_neighbours_by_frequency_lie_in_different_groups():
    vocabulary = 793_471
    interleaved = np.asarray(rows_of(jnp.arange(256), vocabulary)) // group_size(vocabulary)
    assert np.array_equal(interleaved, np.arange(256))


def test_padding_has_no_part_in_the_softmax():
    vocabulary = 300
    bias = np.asarray(without_padding(jnp.zeros(stored_rows(vocabulary)), vocabulary))
    assert np.sum(np.isneginf(bias)) == stored_rows(vocabulary) - vocabulary
    assert not np.isneginf(bias[np.asarray(rows_of(jnp.arange(vocabulary), vocabulary))]).any()
    part = without_padding(jnp.zeros(100), vocabulary, first_row=256)
    assert np.array_equal(part, bias[256:356])
