"""A small biLM with random parameters."""

from __future__ import annotations

import numpy as np

from elmo_jax import EmbeddingBiLM, PretrainedBiLM
from elmo_jax.checkpoints.layout import fingerprint, flatten, parameter_shapes, unflatten
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig

CONFIG = ModelConfig(CharCNNConfig(4, ((1, 3), (3, 6)), 1), LSTMConfig(cells=7, projection=5))


def bilm_of(config: ModelConfig = CONFIG) -> EmbeddingBiLM:
    random = np.random.default_rng(0)
    shapes = parameter_shapes(config)
    params = unflatten({path: random.normal(0, 0.3, shape).astype("f4") for path, shape in shapes.items()})
    return EmbeddingBiLM.of(PretrainedBiLM(config, params, None, {}, fingerprint(flatten(params))))
