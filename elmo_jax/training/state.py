"""The training state: everything that a run needs to resume, in one tree.

Shapes: C cells, R rows of the global batch.
"""

import dataclasses
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import optax

from elmo_jax.checkpoints.softmax_layout import interleave
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
    params: Tree  # the parameters, with the softmax's rows interleaved
    dense_optimizer: Any  # Optax's state of all trained parameters except the softmax
    softmax_accumulator: Tree  # Adagrad's accumulators of the softmax's rows, interleaved
    carry: Tree  # the LSTM state of every row, [2, R, ...]
    position: jax.Array  # [R, 2] the block and the offset that each row reads next
    key: jax.Array  # the data of the random key


def initial_state(
    config: Config,
    model: BiLM,
    optimizer: optax.GradientTransformation,
    params: Tree | None = None,
    frozen: Collection[str] = (),
    seed: jax.Array | None = None,
) -> TrainState:
    """Makes the state before the first step, with all rows at their beginning.

    The softmax's rows of given `params` are in the order of the vocabulary; None means random initial parameters. The
    `optimizer` is that of all trained parameters but the softmax. The `frozen` parts are not trained and have no
    optimizer state. A `seed` takes the place of that of the config, so that one compiled program serves all seeds.
    """
    key = jax.random.key(config.train.seed if seed is None else seed, impl="threefry2x32")
    init, later = jax.random.split(key)
    params = interleave(initial_params(model, init) if params is None else params)
    rows = config.train.batch_size
    initial = config.train.optimizer.initial_accumulator
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        dense_optimizer=optimizer.init(without(params, "softmax", *frozen)),
        softmax_accumulator=jax.tree.map(lambda p: jnp.full_like(p, initial), params["softmax"]),
        carry=initial_carry(config.model, rows),
        position=jnp.zeros((rows, 2), jnp.int32),
        key=jax.random.key_data(later),
    )


def with_accumulators(state: TrainState, sums: Tree, padding: float, frozen: Collection[str] = ()) -> TrainState:
    """Returns the first state with Adagrad's accumulators of an earlier training, a tree like the parameters.

    Rows that only fill the interleaved table of the softmax get the number `padding` above 0.
    """
    sums = interleave(sums, padding)
    dense = optax.tree_utils.tree_set(state.dense_optimizer, sum_of_squares=without(sums, "softmax", *frozen))
    return dataclasses.replace(state, dense_optimizer=dense, softmax_accumulator=sums["softmax"])


def without(params: Tree, *parts: str) -> Tree:
    """Returns the tree without some of its top-level parts."""
    return {name: tree for name, tree in params.items() if name not in parts}


def without_softmax(params: Tree) -> Tree:
    """Returns all parameters except those of the softmax."""
    return without(params, "softmax")
