"""Tests the highway LSTM layers against AllenNLP's and deep_srl's."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose

from elmo_jax.tasks.layers.recurrent import HighwayLayer, HighwayLSTM
from tests.tasks.oracle_cases import each_case


@jax.jit
def run_with_gradients(layers, inputs, mask, dropout, cotangent):
    def total(layers, inputs):
        outputs = inputs.swapaxes(0, 1)
        for number, params in enumerate(layers):
            layer = HighwayLayer(len(params["recurrent"]), "backward" if number % 2 else "forward")
            masks = mask.T, 1.0 if dropout is None else dropout[number]
            outputs = layer.apply({"params": params}, outputs, *masks)
        return jnp.sum(outputs.swapaxes(0, 1) * cotangent), outputs.swapaxes(0, 1)

    gradients, outputs = jax.grad(total, (0, 1), has_aux=True)(layers, inputs)
    return outputs, gradients


def mask_of(lengths, steps):
    return np.arange(steps) < lengths[:, None]


def from_allennlp(arrays, forget_bias=1.0):
    """Converts AllenNLP's parameters to trees; its two biases of a layer are added up.

    Its blocks are in the order i, f, j, o, r, k, and its biases include the 1 that ours adds to the forget gate.
    """
    layers = []
    while f"layer_{len(layers)}.input_linearity.weight" in arrays:
        own = {key.split(".", 1)[1]: value for key, value in arrays.items() if key.startswith(f"layer_{len(layers)}.")}
        units = own["state_linearity.weight"].shape[1]
        order = np.arange(6 * units).reshape(6, units)[[0, 1, 3, 4, 2, 5]].reshape(-1)
        bias = own.get("input_linearity.bias", np.zeros(6 * units, np.float32)).copy()
        bias[: 5 * units] += own["state_linearity.bias"]
        bias[units : 2 * units] -= forget_bias
        layers.append(
            {
                "kernel": own["input_linearity.weight"][order].T,
                "recurrent": own["state_linearity.weight"][order[: 5 * units]].T,
                "bias": bias[order],
            }
        )
    return layers


def gradients_of_allennlp(arrays):
    """The gradient of a sum of two biases is that of either: of the one on the input, if there is one."""

    def added(key, value):
        other = key.replace("state_linearity.bias", "input_linearity.bias")
        return np.zeros_like(value) if other != key and other in arrays else value

    return from_allennlp({key: added(key, value) for key, value in arrays.items()}, forget_bias=0.0)


@each_case("highway_lstm.npz", but=("output/final_h", "output/final_c"))  # the states after the last word
def test_allennlp_outputs_and_gradients(case):
    given = case["input"]
    tolerance = 1e-12 if case.name.endswith("float64") else 5e-6
    layers = from_allennlp(case["param"])
    mask = mask_of(given["lengths"], given["x"].shape[1])
    with jax.enable_x64(case.name.endswith("float64")):
        outputs, (d_layers, d_x) = run_with_gradients(layers, given["x"], mask, None, given["cotangent"])
    assert outputs.dtype == case["output"]["y"].dtype
    assert_allclose(outputs, case["output"]["y"], rtol=0, atol=tolerance)
    assert_allclose(d_x, case["grad_input"]["x"], rtol=0, atol=tolerance)
    for actual, gradient in zip(d_layers, gradients_of_allennlp(case["grad"]), strict=True):
        assert_allclose(actual["kernel"], gradient["kernel"], rtol=0, atol=tolerance)
        assert_allclose(actual["recurrent"], gradient["recurrent"], rtol=0, atol=tolerance)
        known = (
            gradient["bias"].size if "layer_0.input_linearity.bias" in case["grad"] else actual["recurrent"].shape[1]
        )
        assert_allclose(actual["bias"][:known], gradient["bias"][:known], rtol=0, atol=tolerance)


@each_case("highway_lstm_original.npz")
def test_deep_srl_outputs_and_gradients(case):
    given = case["input"]
    layers = []
    while f"layer_{len(layers)}/W" in case["param"]:
        own = {key: case["param"][f"layer_{len(layers)}/{key}"] for key in "WUb"}
        layers.append({"kernel": own["W"], "recurrent": own["U"], "bias": own["b"]})
    outputs, (_, d_x) = run_with_gradients(
        layers,
        given["x"],
        mask_of(given["lengths"], given["x"].shape[1]),
        given.get("dropout_mask"),
        given["cotangent"],
    )
    assert_allclose(outputs, case["output"]["y"], rtol=0, atol=1e-5)
    assert_allclose(d_x, case["grad_input"]["x"], rtol=0, atol=1e-5)


@cache
def model_and_inputs():
    model = HighwayLSTM(layers=2, units=5, dropout=0.4)
    inputs = np.random.default_rng(0).normal(size=(4, 7, 3)).astype(np.float32)
    mask = mask_of(np.array([7, 3, 5, 0]), 7)
    variables = jax.jit(model.init)(jax.random.key(1), inputs, mask)
    return model, variables, inputs, mask


def test_rows_do_not_depend_on_padding_or_on_each_other():
    model, variables, inputs, mask = model_and_inputs()
    apply = jax.jit(model.apply)
    outputs = np.asarray(apply(variables, inputs, mask))
    alone = apply(variables, inputs[1:2, :3], mask[1:2, :3])
    assert_allclose(alone, outputs[1:2, :3], atol=1e-5)
    order = np.array([2, 0, 3, 1])
    assert_allclose(apply(variables, inputs[order], mask[order]), outputs[order], atol=1e-5)
    assert not np.any(outputs[~mask]) and np.all(outputs[mask] != 0)


def test_dropout_is_drawn_only_in_training_and_is_the_same_at_every_step():
    model, variables, inputs, mask = model_and_inputs()
    quiet = np.asarray(jax.jit(model.apply)(variables, inputs, mask))
    apply = jax.jit(partial(model.apply, deterministic=False))
    noisy = np.asarray(apply(variables, inputs, mask, rngs={"dropout": jax.random.key(2)}))
    assert np.abs(noisy - quiet).max() > 0.01
    # the original drops h' itself: a unit that is dropped is zero in all steps of a row, and in no other row
    dropped = np.all((noisy == 0) | ~mask[..., None], axis=1)
    assert 0 < dropped[:3].sum() < dropped[:3].size
    assert np.all(((noisy == 0) == dropped[:, None]) | ~mask[..., None])


def test_initial_values():
    arrays = jnp.zeros((2, 1, 9)), jnp.ones((2, 1), bool), 1.0
    layer = jax.tree.map(np.asarray, jax.jit(HighwayLayer(6, "forward").init)(jax.random.key(0), *arrays)["params"])
    for block in np.split(layer["kernel"], 6, axis=1):  # [9, 6]: its columns are orthonormal
        assert_allclose(block.T @ block, np.eye(6), atol=1e-5)
    for block in np.split(layer["recurrent"], 5, axis=1):
        assert_allclose(block.T @ block, np.eye(6), atol=1e-5)
    assert layer["bias"].shape == (36,) and not np.any(layer["bias"])
    assert not np.allclose(layer["recurrent"][:, :6], layer["recurrent"][:, 6:12])
