"""Small architectures of biLMs and their random parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from elmo_jax.checkpoints.layout import flatten, parameter_shapes, unflatten
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig

# Every dimension has its own size: 40 filters, 11 projection, 23 cells.
SMALL = ModelConfig(
    CharCNNConfig(embedding_dim=5, filters=((1, 7), (2, 13), (4, 20)), highways=2, max_characters=9),
    LSTMConfig(cells=23, projection=11, layers=2),
)


NO_PROJECTIONS = ModelConfig(
    CharCNNConfig(embedding_dim=4, filters=((3, 5), (2, 6)), highways=0, activation="tanh", max_characters=12),
    LSTMConfig(cells=11, projection=11, layers=3, cell_clip=0.0, projection_clip=0.0, skip_connections=False),
    dropout=0.5,
)


ONE_LAYER = ModelConfig(
    CharCNNConfig(embedding_dim=3, filters=((1, 6),), highways=3, max_characters=50), LSTMConfig(8, 4, 1, 1.5, 2.5)
)


def random_tree(model: ModelConfig, vocabulary: int | None = None) -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes = parameter_shapes(model, vocabulary)
    return unflatten({path: random.standard_normal(shape, np.float32) for path, shape in shapes.items()})


def assert_equal(one: dict[str, Any], two: dict[str, Any]) -> None:
    first, second = flatten(one), flatten(two)
    assert first.keys() == second.keys()
    for path in first:
        assert first[path].dtype == second[path].dtype and first[path].shape == second[path].shape, path
        assert first[path].tobytes() == second[path].tobytes(), path
