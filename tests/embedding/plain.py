"""Implements the biLM plainly in NumPy in float64: one sentence, one step and one word at a time."""

from __future__ import annotations

import numpy as np

from elmo_jax.characters import encode_chars


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def token_vector(config, tree, word):
    cnn = config.char_cnn
    tree = tree["token_encoder"]
    embedded = tree["char_embedding"].astype(np.float64)[encode_chars([word], cnn.max_characters)[0]]  # [W, E]
    actual = []
    for i, (width, _) in enumerate(cnn.filters):
        kernel, bias = (tree[f"filter_{i}"][part].astype(np.float64) for part in ("kernel", "bias"))
        windows = [embedded[p : p + width] for p in range(cnn.max_characters - width + 1)]
        actual.append(np.max([np.tensordot(window, kernel, 2) + bias for window in windows], axis=0))
    x = np.concatenate(actual)
    x = np.maximum(x, 0) if cnn.activation == "relu" else np.tanh(x)
    for i in range(cnn.highways):
        layer = tree[f"highway_{i}"]
        gate = sigmoid(x @ layer["carry"]["kernel"].astype(np.float64) + layer["carry"]["bias"])
        transform = np.maximum(x @ layer["transform"]["kernel"].astype(np.float64) + layer["transform"]["bias"], 0)
        x = gate * transform + (1 - gate) * x
    if "projection" in tree:
        x = x @ tree["projection"]["kernel"].astype(np.float64) + tree["projection"]["bias"]
    return x


def run(config, tree, inputs, states):
    """One direction over [T, P]: the layers' outputs [L, T, P]; `states` is changed."""
    lstm, outputs, x = config.lstm, [], inputs
    for j in range(lstm.layers):
        params = {name: leaf.astype(np.float64) for name, leaf in tree[f"layer_{j}"].items()}
        cell, hidden = states[j]
        out = []
        for token in x:
            i, g, f, o = np.split(np.concatenate([token, hidden]) @ params["kernel"] + params["bias"], 4)
            cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(g)
            cell = np.clip(cell, -lstm.cell_clip, lstm.cell_clip) if lstm.cell_clip else cell
            hidden = sigmoid(o) * np.tanh(cell)
            if "projection" in params:
                hidden = hidden @ params["projection"]
                if lstm.projection_clip:
                    hidden = np.clip(hidden, -lstm.projection_clip, lstm.projection_clip)
            out.append(hidden)
        states[j] = cell, hidden
        x = np.stack(out) + (x if j and lstm.skip_connections else 0)
        outputs.append(x)
    return np.stack(outputs)


def embed(config, tree, sentence, states=None):
    """[L+1, T, 2P] of one sentence; `states[direction][layer]` continues from where it was, and is changed."""
    states = zero_states(config) if states is None else states
    vectors = np.stack([token_vector(config, tree, word) for word in ["<S>", *sentence, "</S>"]])
    forward = run(config, tree["forward"], vectors, states[0])
    backward = run(config, tree["backward"], vectors[::-1], states[1])[:, ::-1]
    layers = np.concatenate([np.tile(vectors, 2)[None], np.concatenate([forward, backward], -1)])
    return layers[:, 1:-1]


def zero_states(config):
    lstm = config.lstm
    return [[(np.zeros(lstm.cells), np.zeros(lstm.projection)) for _ in range(lstm.layers)] for _ in range(2)]
