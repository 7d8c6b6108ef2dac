"""The training state: all that a run needs to go on, in one tree.

Shapes: V vocabulary, P projection, C cells, R rows of the global batch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from elmo_jax.config import Config
from elmo_jax.model.bilm import BiLM, initial_carry, initial_params

Tree = dict[str, Any]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class TrainState:
    """One checkpoint. Everything is the same on all devices, but `carry` and `position`, whose rows are divided."""

    step: jax.Array  # updates made
    params: Tree
    dense_optimizer: Any  # Optax's state, of all parameters but the softmax
    softmax_accumulator: Tree  # Adagrad's, kernel [V, P] and bias [V]
    carry: Tree  # LSTM state of every row, [2, R, ...]
    position: jax.Array  # [R, 2] block and offset that each row reads next
    key: jax.Array  # data of the random key


def initial_state(
    config: Config, model: BiLM, optimizer: optax.GradientTransformation, params: Tree | None = None
) -> TrainState:
    """The state before the first step: fresh parameters unless they are given, and rows at their beginning."""
    key = jax.random.key(config.train.seed, impl="threefry2x32")
    init, later = jax.random.split(key)
    params = initial_params(model, init) if params is None else params
    rows = config.train.batch_size
    start = jnp.full_like  # Adagrad's accumulators
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        dense_optimizer=optimizer.init(without_softmax(params)),
        softmax_accumulator=jax.tree.map(
            lambda p: start(p, config.train.optimizer.initial_accumulator), params["softmax"]
        ),
        carry=initial_carry(config.model, rows),
        position=jnp.zeros((rows, 2), jnp.int32),
        key=jax.random.key_data(later),
    )


def without_softmax(params: Tree) -> Tree:
    """The parameters that Optax updates."""
    return {name: tree for name, tree in params.items() if name != "softmax"}
