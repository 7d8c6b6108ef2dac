"""A small biLM to export, and code in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from elmo_jax.checkpoints.layout import flatten, unflatten
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig
from tests.environment import xla_flags

HERE = Path(__file__).parent


MODEL = ModelConfig(
    CharCNNConfig(embedding_dim=5, filters=((1, 7), (3, 9)), highways=1, max_characters=12),
    LSTMConfig(cells=23, projection=11, layers=2, cell_clip=2.5),
)


# The interface of layout version 1. A change here is a change for every user: raise LAYOUT_VERSION.
GOLDEN = {
    "token_encoder/char_embedding": (261, 5),
    "token_encoder/filter_0/kernel": (1, 5, 7),
    "token_encoder/filter_0/bias": (7,),
    "token_encoder/filter_1/kernel": (3, 5, 9),
    "token_encoder/filter_1/bias": (9,),
    "token_encoder/highway_0/carry/kernel": (16, 16),
    "token_encoder/highway_0/carry/bias": (16,),
    "token_encoder/highway_0/transform/kernel": (16, 16),
    "token_encoder/highway_0/transform/bias": (16,),
    "token_encoder/projection/kernel": (16, 11),
    "token_encoder/projection/bias": (11,),
    "forward/layer_0/kernel": (22, 92),
    "forward/layer_0/bias": (92,),
    "forward/layer_0/projection": (23, 11),
    "forward/layer_1/kernel": (22, 92),
    "forward/layer_1/bias": (92,),
    "forward/layer_1/projection": (23, 11),
    "backward/layer_0/kernel": (22, 92),
    "backward/layer_0/bias": (92,),
    "backward/layer_0/projection": (23, 11),
    "backward/layer_1/kernel": (22, 92),
    "backward/layer_1/bias": (92,),
    "backward/layer_1/projection": (23, 11),
    "softmax/kernel": (6, 11),
    "softmax/bias": (6,),
}


WORDS = ["<S>", "</S>", "<UNK>", "naïve", "a\u2028b", "/\r"]


def tree(seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return unflatten({path: random.standard_normal(shape, np.float32) for path, shape in GOLDEN.items()})


def assert_equal(one: dict[str, Any], two: dict[str, Any]) -> None:
    first, second = flatten(one), flatten(two)
    assert first.keys() == second.keys()
    for path in first:
        assert first[path].dtype == second[path].dtype, path
        assert np.asarray(first[path]).tobytes() == np.asarray(second[path]).tobytes(), path


def run(code: str, devices: int = 1) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONPATH=os.pathsep.join([str(HERE), str(HERE.parents[1])]))
    environment["XLA_FLAGS"] = xla_flags(devices)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
