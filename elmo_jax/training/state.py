"""The training state: everything that a run needs to resume, in one tree.

Shapes: C cells, R rows of the global batch.
"""

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
    """The state of a training, which is the content of a checkpoint.

    All arrays are the same on all devices, except `carry` and `position`, whose rows are divided, and the softmax rows
    with their accumulators if these are sharded.
    """

    step: jax.Array  # the number of updates made
    params: Tree  # the parameters, with the softmax's rows in lanes
    dense_optimizer: Any  # Optax's state of all trained parameters except the softmax
    softmax_accumulator: Tree  # Adagrad's accumulators of the softmax's rows, in lanes
    carry: Tree  # the LSTM state of every row, [2, R, ...]
    position: jax.Array  # [R, 2] the block and the offset that each row reads next
    key: jax.Array  # the data of the random key


def initial_state(
    config: Config,
    model: BiLM,
    optimizer: optax.GradientTransformation,
    params: Tree | None = None,
    frozen: Collection[str] = (),
    accumulators: Tree | None = None,
) -> TrainState:
    """Makes the state before the first step, with all rows at their beginning.

    The softmax's rows of given `params` are in the order of the vocabulary; None means random initial parameters. The
    `optimizer` is that of all trained parameters but the softmax. The `frozen` parts are not trained and have no
    optimizer state. `accumulators`, a tree like `params`, are Adagrad's from an earlier training; None for new ones.
    """
    key = jax.random.key(config.train.seed, impl="threefry2x32")
    init, later = jax.random.split(key)
    params = to_lanes(initial_params(model, init) if params is None else params)
    rows = config.train.batch_size
    initial = config.train.optimizer.initial_accumulator
    dense_state = optimizer.init(without(params, "softmax", *frozen))
    softmax_sums = jax.tree.map(lambda p: jnp.full_like(p, initial), params["softmax"])
    if accumulators is not None:
        sums = to_lanes(accumulators, initial)
        dense_state = optax.tree_utils.tree_set(dense_state, sum_of_squares=without(sums, "softmax", *frozen))
        softmax_sums = sums["softmax"]
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        dense_optimizer=dense_state,
        softmax_accumulator=softmax_sums,
        carry=initial_carry(config.model, rows),
        position=jnp.zeros((rows, 2), jnp.int32),
        key=jax.random.key_data(later),
    )


def without(params: Tree, *parts: str) -> Tree:
    """Returns the tree without some of its top-level parts."""
    return {name: tree for name, tree in params.items() if name not in parts}


def without_softmax(params: Tree) -> Tree:
    """Returns all parameters except those of the softmax."""
    return without(params, "softmax")
