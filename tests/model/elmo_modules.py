"""A small biLM for the ELMo module, and the module with it."""

from __future__ import annotations

import functools

import jax
import numpy as np

import elmo_jax
from elmo_jax import (
    with_bilm,
)
from elmo_jax.checkpoints.layout import fingerprint, flatten, parameter_shapes, unflatten
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig

CONFIG = ModelConfig(CharCNNConfig(4, ((1, 3), (3, 6)), 1, max_characters=11), LSTMConfig(cells=7, projection=5))


SENTENCES = [["the", "cat", "sat"], [], ["a/b", "naïve", "the", "longestwordofall", "…"], ["cat"]]


SIZE = CONFIG.char_cnn.max_characters


def bilm_of(seed: int = 0) -> elmo_jax.EmbeddingBiLM:
    random = np.random.default_rng(seed)
    shapes = parameter_shapes(CONFIG)
    params = unflatten({path: random.normal(0, 0.4, shape).astype("f4") for path, shape in shapes.items()})
    plain = elmo_jax.PretrainedBiLM(CONFIG, params, None, {}, fingerprint(flatten(params)))
    return elmo_jax.EmbeddingBiLM.of(plain)


def made(bilm, characters, **settings):
    """The module, and variables whose mixes are not at their start."""
    module = bilm.elmo(**settings)
    variables = jax.jit(module.init)(jax.random.key(0), characters)
    random = np.random.default_rng(1)
    params = variables.get("params", {})  # the token layer has none
    variables["params"] = jax.tree.map(lambda x: x + random.normal(size=x.shape).astype("f4"), params)
    return module, with_bilm(variables, bilm)


@functools.cache
def compiled(module, method):
    return jax.jit(functools.partial(module.apply, method=method), static_argnames="deterministic")


def run(module, variables, *arguments, method=None, **keywords):
    return compiled(module, method)(variables, *arguments, **keywords)


def by_hand(layers, counted, params, norm):
    """Computes equation 1 in float64 with or without boundary tokens, from layers [B, N, T, D] and `counted` [B, T]."""
    layers = np.asarray(layers, np.float64)
    shares = np.exp(np.asarray(params["weights"], np.float64))
    shares /= shares.sum()
    total = 0.0
    for share, layer in zip(shares, layers.swapaxes(0, 1), strict=True):
        if norm:
            values = layer[counted]
            layer = (layer - values.mean()) / np.sqrt(values.var() + 1e-12)
        total = total + share * layer
    return float(params["gamma"]) * total * counted[..., None]
