"""The training state, and one step, as the program of one device over the named axes of the mesh.

A device computes the gradients of its rows in k groups, one after the other (`TrainConfig.accumulate`). Microbatch g of
device d takes the place of device d k + g of k times as many devices: it has the rows, the distinct words and the
random numbers of that device.

Shapes: U distinct words of a group, W characters, B rows of a group, T steps, P projection, V vocabulary, S negatives
per direction; a leading 2 is the direction. The softmax's rows are interleaved (checkpoints/softmax_layout.py).
"""

import dataclasses
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from elmo_jax.checkpoints.softmax_layout import interleave, rows_of, without_padding
from elmo_jax.config import Config, TrainConfig
from elmo_jax.data.batches import TrainingBatch
from elmo_jax.data.windows import Window
from elmo_jax.distributed.mesh import AXIS
from elmo_jax.model.bilm import BiLM, initial_carry, initial_params
from elmo_jax.model.softmax import full_softmax_losses, log_expected_count, sampled_softmax_losses
from elmo_jax.training import dense_sharding
from elmo_jax.training.optimizer import adagrad_rows, dense_optimizer, lr_schedule, square_sum
from elmo_jax.training.softmax_sharding import Part, Placement, ReplicatedRows, ShardedRows, Wanted
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
    carry: Tree  # the LSTM state of every row of the global batch, [2, R, ...]
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
    `frozen` parts have no optimizer state. A `seed` takes the place of that of the config, so that one compiled program
    serves all seeds.
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


class Microbatch(NamedTuple):
    """The part of a device's batch that it trains at once, or all groups with a leading axis k."""

    window: Window
    reset_state: jax.Array  # [T, B] true where a row begins a block
    carry: Tree  # [2, B, ...] the LSTM state before the window
    key: jax.Array  # the random key of its dropout


class Metrics(NamedTuple):
    """The metrics of a step, which are the same on all devices."""

    loss: jax.Array  # [2] nats per token of each direction, of the softmax that is trained (sampled or full)
    gradient_norm: jax.Array  # before clipping
    learning_rate: jax.Array


@dataclasses.dataclass(frozen=True)
class TrainStep:
    """A step `(state, batch, char_ids) -> (state, metrics)`, to be mapped over the axes of a mesh."""

    model: BiLM  # the model, without softmax
    config: TrainConfig  # the training settings
    total_steps: int  # the number of updates of the run, for the schedule
    vocabulary_size: int  # V
    # the parts of the parameter tree that are not trained, which never include the softmax
    frozen: tuple[str, ...] = ()
    placement: Placement = Placement.REPLICATED  # the placement of the softmax's rows

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return dense_optimizer(self.config.optimizer, lr_schedule(self.config.optimizer, self.total_steps))

    def __call__(self, state: TrainState, batch: TrainingBatch, char_ids: jax.Array) -> tuple[TrainState, Metrics]:
        """Makes one update from a device's parts of state and batch; `char_ids` [types, W] are those of the lexicon."""
        trained, softmax = without(state.params, "softmax", *self.frozen), state.params["softmax"]
        groups = self._groups(state, batch)
        wanted = self._wanted(groups, batch)
        exchange = ShardedRows(self.model.precision) if self.placement is Placement.SHARDED else ReplicatedRows()
        rows, fetched = exchange.fetch(softmax, wanted)
        gradients, losses, carry = self._gradients(trained, rows, groups, self._loss(state, batch, char_ids))
        dense_gradient, losses = dense_sharding.average(gradients[0], losses)
        row_gradients = exchange.collect(softmax, wanted, fetched, gradients[1])

        squares = row_gradients.fold(lambda part, total: total + square_sum(part[1]), jnp.zeros(()))
        norm = jnp.sqrt(dense_sharding.total_square_sum(dense_gradient, trained) + exchange.total(squares))
        clip = self.config.optimizer.clip_norm
        scale = clip / jnp.maximum(norm, clip) if clip else jnp.ones(())
        dense_gradient = jax.tree.map(lambda g: g * scale, dense_gradient)

        optimizer = self.config.optimizer
        factor = lr_schedule(optimizer, self.total_steps)(state.step)
        own = dense_sharding.own_rows(trained)
        updates, dense_state = self.optimizer.update(dense_gradient, state.dense_optimizer, own)
        updates = dense_sharding.all_rows(updates, trained)
        rate = (optimizer.softmax_learning_rate or optimizer.learning_rate) * factor

        def update(part: Part, rows: dict[str, tuple[jax.Array, jax.Array]]) -> dict[str, tuple[jax.Array, jax.Array]]:
            ids, gradient = part
            return {name: adagrad_rows(*rows[name], ids, gradient[name] * scale, rate) for name in rows}

        rows_and_sums = {name: (softmax[name], state.softmax_accumulator[name]) for name in softmax}
        updated = row_gradients.fold(update, rows_and_sums)
        new = TrainState(
            step=state.step + 1,
            params=state.params
            | optax.apply_updates(trained, updates)
            | {"softmax": {name: new for name, (new, _) in updated.items()}},
            dense_optimizer=dense_state,
            softmax_accumulator={name: sums for name, (_, sums) in updated.items()},
            carry=carry,
            position=batch.position,
            key=state.key,
        )
        return new, Metrics(losses, norm, optimizer.learning_rate * factor)

    def _groups(self, state: TrainState, batch: TrainingBatch) -> Microbatch:
        number = self.config.accumulate

        def divided(array: jax.Array, axis: int) -> jax.Array:
            shape = (*array.shape[:axis], number, array.shape[axis] // number, *array.shape[axis + 1 :])
            return jnp.moveaxis(array.reshape(shape), axis, 0)

        key = jax.random.fold_in(jax.random.wrap_key_data(state.key, impl="threefry2x32"), state.step)
        words, word_count, inputs, targets = batch.window
        return Microbatch(
            Window(divided(words, 0), divided(word_count, 0), divided(inputs, 2), divided(targets, 2)),
            reset_state=divided(batch.reset_state, 1),
            carry=jax.tree.map(lambda c: divided(c, 1), state.carry),
            key=jax.vmap(partial(jax.random.fold_in, key))(lax.axis_index(AXIS) * number + jnp.arange(number)),
        )

    def _wanted(self, groups: Microbatch, batch: TrainingBatch) -> Wanted | None:
        """Returns the rows of the softmax that this device's loss reads in both directions; None means all rows."""
        if not self.config.negatives:
            return None
        words = (groups.window.targets, batch.negatives)
        return Wanted(*(rows_of(ids.reshape(-1), self.vocabulary_size) for ids in words))  # [k 2TB], [2S]

    def _gradients(
        self, trained: Tree, rows: Tree, groups: Microbatch, loss: Callable[..., Any]
    ) -> tuple[tuple[Tree, Tree], jax.Array, Tree]:
        """Returns the gradients of `trained` and `rows` and the losses [2], averaged over groups, and the LSTM state.

        The `rows` of the softmax, if only some are fetched, begin with those of the targets of all groups.
        """
        number = self.config.accumulate
        split = groups.window.targets.size if self.config.negatives else 0
        of_targets = jax.tree.map(lambda r: r[:split].reshape(number, split // number, *r.shape[1:]), rows)
        others = jax.tree.map(lambda r: r[split:], rows)

        def add(sums: Tree, of_group: tuple[Microbatch, Tree]) -> tuple[Tree, Any]:
            group, of_targets = of_group
            gradients, results = jax.grad(loss, (0, 1, 2), has_aux=True)(trained, of_targets, others, group)
            return jax.tree.map(jnp.add, sums, (gradients[0], gradients[2])), (gradients[1], *results)

        zeros = jax.tree.map(jnp.zeros_like, (trained, others))
        sums, results = lax.scan(add, zeros, (groups, of_targets), unroll=number == 1)
        (dense, others), (of_targets, losses) = jax.tree.map(lambda g: g / number, (sums, results[:2]))
        of_rows = jax.tree.map(lambda t, o: jnp.concatenate([t.reshape(split, *t.shape[2:]), o]), of_targets, others)
        carry = jax.tree.map(lambda c: jnp.moveaxis(c, 0, 1).reshape(c.shape[1], -1, *c.shape[3:]), results[2])
        return (dense, of_rows), losses.sum(axis=0), carry

    def _loss(self, state: TrainState, batch: TrainingBatch, char_ids: jax.Array) -> Callable[..., Any]:
        """Returns the function of a group's loss times T, which bilm-tf differentiates, losses [2] and LSTM state."""

        def loss(trained: Tree, of_targets: Tree, others: Tree, group: Microbatch) -> Any:
            layers, carry = self.model.apply(
                {"params": without_softmax(state.params) | trained},
                char_ids[group.window.words],
                group.window.inputs,
                group.carry,
                count=group.window.word_count[0],
                reset_state=group.reset_state if self.config.carry == "block" else None,
                deterministic=False,
                rngs={"dropout": group.key},
            )
            hidden = layers[-1].reshape(len(layers[-1]), -1, layers[-1].shape[-1])  # [2, T * B, P]
            targets = group.window.targets.reshape(len(hidden), -1)
            if self.config.negatives:
                losses = self._sampled_losses(hidden, targets, of_targets, others, batch)
            else:
                losses = self._full_losses(hidden, targets, others)
            losses = losses.mean(axis=1)  # [2]
            return losses.mean() * self.config.unroll_steps, (losses, carry)

        return loss

    def _sampled_losses(
        self, hidden: jax.Array, targets: jax.Array, of_targets: Tree, of_negatives: Tree, batch: TrainingBatch
    ) -> jax.Array:
        """Returns the losses [2, T * B], given the rows of the targets and of the negatives of both directions."""

        def direction(d: int) -> jax.Array:
            ids = targets[d], batch.negatives[d]
            true, sampled = (log_expected_count(i, batch.num_draws[d], self.vocabulary_size) for i in ids)
            of_true = jax.tree.map(lambda r: r.reshape(*targets.shape, *r.shape[1:])[d], of_targets)
            of_sampled = jax.tree.map(lambda r: r.reshape(*batch.negatives.shape, *r.shape[1:])[d], of_negatives)
            rows = [(tree["kernel"], tree["bias"]) for tree in (of_true, of_sampled)]
            return sampled_softmax_losses(hidden[d], rows[0], rows[1], *ids, (true, sampled), self.model.precision)

        return jnp.stack([direction(d) for d in range(len(hidden))])

    def _full_losses(self, hidden: jax.Array, targets: jax.Array, rows: Tree) -> jax.Array:
        kernel, bias = rows["kernel"], without_padding(rows["bias"], self.vocabulary_size)
        ids, options = rows_of(targets, self.vocabulary_size), (len(bias), self.model.precision)
        return jnp.stack([full_softmax_losses(h, kernel, bias, i, *options) for h, i in zip(hidden, ids, strict=True)])
