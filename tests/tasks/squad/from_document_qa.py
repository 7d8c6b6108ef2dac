"""Converts document-qa's parameters to those of this package."""

import numpy as np


def gru(params, scope):
    """The bidirectional GRU below `scope`; `gates/kernel` has rows input, state and columns r, z."""
    actual = {"kernel": [], "recurrent": [], "bias": [], "recurrent_bias": []}
    for direction in ("fw", "bw"):
        cell = f"{scope}bidirectional_rnn/{direction}/cudnn_compatible_gru_cell/"
        gates, candidate = params[cell + "gates/kernel"], params[cell + "candidate/input_projection/kernel"]
        recurrent = params[cell + "candidate/hidden_projection/kernel"]
        size = len(candidate)
        actual["kernel"].append(np.concatenate([gates[:size], candidate], axis=1))
        actual["recurrent"].append(np.concatenate([gates[size:], recurrent], axis=1))
        bias = [params[cell + "gates/bias"], params[cell + "candidate/input_projection/bias"]]
        actual["bias"].append(np.concatenate(bias))
        actual["recurrent_bias"].append(params[cell + "candidate/hidden_projection/bias"])
    return {name: np.stack(arrays) for name, arrays in actual.items()}


def trilinear(params, scope):
    names = {"first": "input_w", "second": "key_w", "product": "dot_w", "bias": "bias"}
    return {name: params[f"{scope}{key}"] for name, key in names.items()}


def dense(params, scope, kernel="kernel", bias="bias"):
    return {"kernel": params[f"{scope}{kernel}"], "bias": params[f"{scope}{bias}"]}


def squad(params):
    """Converts the whole model."""
    residual, bounds = "process_attention/layer_1/", "predict/bounds_encoding/"
    null = params[residual + "layer_3/no-alignment-bias"]
    return {
        "encoder": gru(params, "map_embed/layer_1/"),
        "attention": {"scores": trilinear(params, "apply_attention/")},
        "joined": dense(params, "process_attention/layer_0/dense/"),
        "self_encoder": gru(params, residual + "layer_1/"),
        "self_attention": {"scores": trilinear(params, residual + "layer_3/"), "null": null},
        "self_joined": dense(params, residual + "layer_4/dense/"),
        "start": gru(params, bounds + "out/"),
        "end": gru(params, bounds + "chained-out/"),
        "start_logits": dense(params, "predict/start_pred/fully_connected/", "weights", "biases"),
        "end_logits": dense(params, "predict/end_pred/fully_connected/", "weights", "biases"),
    }
