"""Tests the character CNN of the task models against the oracle, and the independence of a word's vector."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.tasks.core.config import CharactersConfig
from elmo_jax.tasks.core.inputs import CharCNN
from tests.tasks import weights
from tests.tasks.oracle_cases import read_case


def oracle(case):
    case = read_case("ner.npz", case)
    prefix = "text_field_embedder.token_embedder_token_characters"
    convolution = f"{prefix}._encoder._module.conv_layer_0"
    params = {
        "embedding": case["param"][f"{prefix}._embedding._module.weight"],
        "filter_0_kernel": case["param"][f"{convolution}.weight"].transpose(2, 1, 0),
        "filter_0_bias": case["param"][f"{convolution}.bias"],
    }
    return params, case["input"]["token_characters"], case["output"]["embedded"][..., :4]


def encode(params, ids, max_characters):
    (characters, size), (width, _, number) = params["embedding"].shape, params["filter_0_kernel"].shape
    model = CharCNN(characters, CharactersConfig(size, ((width, number),), max_characters))
    return np.asarray(jax.jit(model.apply)({"params": params}, ids))


def test_is_the_oracle_where_no_bias_is_positive():
    params, ids, expected = oracle("bias_not_positive")
    weights.close(encode(params, ids, ids.shape[-1]), expected)


def test_windows_of_padding_alone_are_left_out_where_biases_are_positive():
    params, ids, expected = oracle("bias_positive")
    actual = encode(params, ids, ids.shape[-1])
    weights.close(weights.with_windows_of_padding(actual, ids, params), expected)
    assert np.abs(actual - expected).max() > 0.1


@pytest.mark.parametrize("case", ["bias_not_positive", "bias_positive"])
def test_a_word_does_not_depend_on_its_batch(case):
    """Words have every length, are the longest of their batch or not, and may be shorter than a filter."""
    params, _, _ = oracle(case)
    random = np.random.default_rng(0)
    lengths = np.array([0, 1, 2, 4, 6])
    ids = np.where(np.arange(6) < lengths[:, None], random.integers(1, 11, (5, 6)), 0)
    batch = encode(params, ids, 9)
    assert not batch[0].any() and batch[1:].any()
    for columns in (1, 4, 9):
        wider = np.zeros((5, columns), int)
        rows = lengths <= columns
        wider[rows, : min(columns, 6)] = ids[rows, :columns]
        assert_allclose(encode(params, wider, 9)[rows], batch[rows], atol=1e-5)


def test_filters_of_several_widths_and_their_number():
    model = CharCNN(30, CharactersConfig(16, ((3, 128), (5, 7))))
    ids = np.array([[[3, 4, 5, 0], [6, 0, 0, 0]]])
    variables = jax.jit(model.init)(jax.random.key(0), ids)
    params = variables["params"]
    assert params["filter_0_kernel"].size + params["filter_0_bias"].size == 6272  # the paper's tagger
    actual, back = jax.vjp(jax.jit(lambda p: model.apply({"params": p}, ids)), params)
    assert actual.shape == (1, 2, 135)
    (grads,) = back(actual)
    assert all(np.abs(grad).max() > 0 for grad in jax.tree.leaves(grads))
    assert not np.asarray(grads["embedding"])[0].any()  # padding is zero whatever its row holds


def test_dropout_acts_on_the_characters_below_the_filters_in_training_only():
    model = CharCNN(30, CharactersConfig(8, ((2, 5),), initial="narrow", dropout=0.5))
    ids = np.arange(1, 25).reshape(6, 4)
    variables = jax.jit(model.init)(jax.random.key(0), ids)
    embedding = np.abs(variables["params"]["embedding"])
    assert 0.045 < embedding.max() <= 0.05
    variables["params"]["filter_0_bias"] = np.full(5, 9.0, np.float32)  # no filter's maximum is zero by itself
    train = jax.jit(lambda key: model.apply(variables, ids, deterministic=False, rngs={"dropout": key}))
    one, again, other = (np.asarray(train(jax.random.key(seed))) for seed in (1, 1, 2))
    assert (one == again).all() and (one != other).any() and (one > 0).all()
    jax.jit(model.apply)(variables, ids)  # no key is needed
