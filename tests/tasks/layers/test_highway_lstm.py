"""Tests the highway LSTM layers against AllenNLP's and deep_srl's, and the written backward pass against autodiff."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.tasks.layers import highway_lstm
from elmo_jax.tasks.layers.highway_lstm import (
    HighwayLayer,
    HighwayLSTM,
    HighwaySettings,
    highway_layer,
    highway_stack,
)
from tests.tasks.oracle_cases import each_case


@partial(jax.jit, static_argnames="settings")
def run_with_gradients(layers, inputs, mask, dropout, cotangent, settings):
    def total(layers, inputs):
        outputs, states = highway_stack(layers, inputs.swapaxes(0, 1), mask.T, settings, dropout)
        return jnp.sum(outputs.swapaxes(0, 1) * cotangent), (outputs.swapaxes(0, 1), states)

    gradients, (outputs, states) = jax.grad(total, (0, 1), has_aux=True)(layers, inputs)
    return outputs, states, gradients


def mask_of(lengths, steps):
    return np.arange(steps) < lengths[:, None]


def from_allennlp(arrays):
    """Converts AllenNLP's parameters or gradients to trees; its two biases of the gates are added up."""
    layers = []
    while f"layer_{len(layers)}.input_linearity.weight" in arrays:
        own = {key.split(".", 1)[1]: value for key, value in arrays.items() if key.startswith(f"layer_{len(layers)}.")}
        bias = own["state_linearity.bias"]
        if "input_linearity.bias" in own:
            both = own["input_linearity.bias"].copy()
            both[: len(bias)] += bias
            bias = both
        layers.append(
            {"kernel": own["input_linearity.weight"].T, "recurrent": own["state_linearity.weight"].T, "bias": bias}
        )
    return layers


@each_case("highway_lstm.npz")
def test_allennlp_outputs_states_and_gradients(case):
    given = case["input"]
    tolerance = 1e-12 if case.name.endswith("float64") else 5e-6
    highway = "none" if case.name == "three_layers_no_highway" else "gated"
    settings = HighwaySettings("allennlp", highway)
    layers = from_allennlp(case["param"])
    mask = mask_of(given["lengths"], given["x"].shape[1])
    with jax.enable_x64(case.name.endswith("float64")):
        outputs, states, (d_layers, d_x) = run_with_gradients(
            layers, given["x"], mask, given.get("dropout_mask"), given["cotangent"], settings
        )
    assert outputs.dtype == case["output"]["y"].dtype
    assert_allclose(outputs, case["output"]["y"], rtol=0, atol=tolerance)
    assert_allclose(np.stack([state.hidden for state in states]), case["output"]["final_h"], rtol=0, atol=tolerance)
    assert_allclose(np.stack([state.cell for state in states]), case["output"]["final_c"], rtol=0, atol=tolerance)
    assert_allclose(d_x, case["grad_input"]["x"], rtol=0, atol=tolerance)
    for found, gradient in zip(d_layers, gradients_of_allennlp(case["grad"]), strict=True):
        assert_allclose(found["kernel"], gradient["kernel"], rtol=0, atol=tolerance)
        assert_allclose(found["recurrent"], gradient["recurrent"], rtol=0, atol=tolerance)
        assert_allclose(found["bias"], gradient["bias"], rtol=0, atol=tolerance)


def gradients_of_allennlp(arrays):
    """The gradient of a sum of two biases is that of either of them: that on the input, which covers all blocks."""
    layers = from_allennlp(arrays)
    for number, layer in enumerate(layers):
        layer["bias"] = arrays.get(f"layer_{number}.input_linearity.bias", layer["bias"])
    return layers


@each_case("highway_lstm_original.npz")
def test_deep_srl_outputs_and_gradients(case):
    given = case["input"]
    layers = []
    while f"layer_{len(layers)}/W" in case["param"]:
        own = {key: case["param"][f"layer_{len(layers)}/{key}"] for key in "WUb"}
        layers.append({"kernel": own["W"], "recurrent": own["U"], "bias": own["b"]})
    outputs, _, (_, d_x) = run_with_gradients(
        layers,
        given["x"],
        mask_of(given["lengths"], given["x"].shape[1]),
        given.get("dropout_mask"),
        given["cotangent"],
        HighwaySettings("original"),
    )
    assert_allclose(outputs, case["output"]["y"], rtol=0, atol=5e-6)
    assert_allclose(d_x, case["grad_input"]["x"], rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("form", "highway", "direction"),
    [
        ("original", "gated", "forward"),
        ("original", "none", "backward"),
        ("allennlp", "gated", "backward"),
        ("allennlp", "none", "forward"),
    ],
)
def test_written_backward_pass_equals_autodiff(form, highway, direction, monkeypatch):
    """The gradients through the last state count too, with dropout and rows of different lengths, one of them empty."""
    rng = np.random.default_rng(1)
    steps, rows, size, units = 7, 4, 3, 5
    blocks, seeing = (4, 4) if highway == "none" else (6, 5)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    params = {
        "kernel": normal(size, blocks * units),
        "recurrent": normal(units, seeing * units),
        "bias": normal(blocks * units),
    }
    inputs = normal(steps, rows, size)
    dropout = (2.0 * rng.integers(0, 2, (rows, units))).astype(np.float32)
    weights = (normal(steps, rows, units), normal(rows, units), normal(rows, units))
    mask = mask_of(np.array([7, 0, 4, 1]), steps).T

    def gradients():
        def total(params, inputs):
            settings = HighwaySettings(form, highway, direction)
            outputs, last = highway_layer(params, inputs, mask, settings, dropout)
            return sum(jnp.sum(a * b) for a, b in zip((outputs, *last), weights, strict=True))

        return jax.jit(jax.value_and_grad(total, (0, 1)))(params, inputs)

    found = gradients()
    monkeypatch.setattr(highway_lstm, "run_written", highway_lstm.run)
    expected = gradients()
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)


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
    assert_allclose(alone, outputs[1:2, :3], atol=1e-6)
    order = np.array([2, 0, 3, 1])
    assert_allclose(apply(variables, inputs[order], mask[order]), outputs[order], atol=1e-6)
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


@pytest.mark.parametrize(("form", "forget"), [("original", 0.0), ("allennlp", 1.0)])
def test_initial_values(form, forget):
    bias = "gates" if form == "allennlp" else "all"
    init = jax.jit(HighwayLayer(9, 6, HighwaySettings(form), bias).init)
    layer = jax.tree.map(np.asarray, init(jax.random.key(0))["params"])
    for block in np.split(layer["kernel"], 6, axis=1):  # [9, 6]: its columns are orthonormal
        assert_allclose(block.T @ block, np.eye(6), atol=1e-5)
    for block in np.split(layer["recurrent"], 5, axis=1):
        assert_allclose(block.T @ block, np.eye(6), atol=1e-5)
    assert layer["bias"].shape == ((30,) if form == "allennlp" else (36,))
    assert_allclose(layer["bias"][6:12], forget)
    assert not np.any(layer["bias"][:6]) and not np.any(layer["bias"][12:])
    assert not np.allclose(layer["recurrent"][:, :6], layer["recurrent"][:, 6:12])
