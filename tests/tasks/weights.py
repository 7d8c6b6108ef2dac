"""Converts the weights of the oracles of the task models to the layouts of this package.

Tensors keep PyTorch's layouts: `Linear.weight` [out, in], LSTM weights [4H, in] with gates i, f, g, o and two biases
that add, `Conv1d.weight` [out, in, width].
"""

import numpy as np
from numpy.testing import assert_allclose


def close(found, expected, tolerance=1e-5):
    """Asserts that arrays agree within `tolerance` times the largest entry."""
    expected = np.asarray(expected)
    assert_allclose(found, expected, rtol=0, atol=tolerance * max(np.abs(expected).max(), 1e-30))


def dense(params, prefix):
    return {"kernel": params[f"{prefix}.weight"].T, "bias": params[f"{prefix}.bias"]}


def gates(blocks):
    """Reorders gates [4H, ...] from i, f, g, o to i, g, f, o."""
    i, f, g, o = np.split(blocks, 4)
    return np.concatenate([i, g, f, o])


def lstm(params, prefix, suffix):
    read, fed_back = (gates(params[f"{prefix}.weight_{part}_{suffix}"]).T for part in ("ih", "hh"))
    bias = params[f"{prefix}.bias_ih_{suffix}"] + params[f"{prefix}.bias_hh_{suffix}"]
    return {"kernel": np.concatenate([read, fed_back]), "bias": gates(bias)}


def bilstm(params, prefix, layer=0):
    return {
        "forward": lstm(params, prefix, f"l{layer}"),
        "backward": lstm(params, prefix, f"l{layer}_reverse"),
    }


def with_windows_of_padding(vectors, ids, params):
    """Returns the vectors of AllenNLP's character CNN, whose windows of padding alone take part with the bias."""
    alone = (ids > 0).sum(-1, keepdims=True) <= ids.shape[-1] - len(params["filter_0_kernel"])
    return np.where(alone, np.maximum(vectors, params["filter_0_bias"]), vectors)
