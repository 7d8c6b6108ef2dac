"""The training state: all that a run needs to go on, in one tree.

Shapes: C cells, R rows of the global batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import optax

from elmo_jax.checkpoints.softmax_layout import to_lanes
from elmo_jax.config import Config
from elmo_jax.model.bilm import BiLM, initial_carry, initial_params
from elmo_jax.types import Tree


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class TrainState:
    """One checkpoint. Everything is the same on all devices, but `carry` and `position`, whose rows are divided."""

    step: jax.Array  # updates made
    params: Tree  # with the softmax's rows in lanes
    dense_optimizer: Any  # Optax's state, of all trained parameters but the softmax
    softmax_accumulator: Tree  # Adagrad's, of the rows in lanes
    carry: Tree  # LSTM state of every row, [2, R, ...]
    position: jax.Array  # [R, 2] block and offset that each row reads next
    key: jax.Array  # data of the random key


def initial_state(
    config: Config,
    model: BiLM,
    optimizer: optax.GradientTransformation,
    params: Tree | None = None,
    frozen: Collection[str] = (),
) -> TrainState:
    """The state before the first step: fresh parameters unless they are given, and rows at their beginning.

    `params` have the softmax's rows in the order of the vocabulary, as exports do. `frozen` parts of the parameter tree
    are not trained, so there is no optimizer state of theirs.
    """
    key = jax.random.key(config.train.seed, impl="threefry2x32")
    init, later = jax.random.split(key)
    params = to_lanes(initial_params(model, init) if params is None else params)
    rows = config.train.batch_size
    start = jnp.full_like  # Adagrad's accumulators
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        dense_optimizer=optimizer.init(without(params, "softmax", *frozen)),
        softmax_accumulator=jax.tree.map(
            lambda p: start(p, config.train.optimizer.initial_accumulator), params["softmax"]
        ),
        carry=initial_carry(config.model, rows),
        position=jnp.zeros((rows, 2), jnp.int32),
        key=jax.random.key_data(later),
    )


def without(params: Tree, *parts: str) -> Tree:
    """The tree without some of its top-level parts."""
    return {name: tree for name, tree in params.items() if name not in parts}


def without_softmax(params: Tree) -> Tree:
    """All parameters but those of the softmax."""
    return without(params, "softmax")
