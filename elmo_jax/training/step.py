"""One training step, as the program of one device over the named axis `data`.

Shapes: U distinct words of the device's batch, W characters, B rows of the device, T steps, P projection, V vocabulary,
S negatives per direction, D devices; a leading 2 is the direction. The softmax's rows are in lanes
(checkpoints/softmax_layout.py).
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from elmo_jax.checkpoints.softmax_layout import rows_of, without_padding
from elmo_jax.config import TrainConfig
from elmo_jax.data.batches import TrainingBatch
from elmo_jax.distributed.mesh import AXIS
from elmo_jax.model.bilm import BiLM
from elmo_jax.model.precision import Precision
from elmo_jax.model.softmax import full_softmax_losses, log_expected_count, sampled_softmax_losses
from elmo_jax.training.optimizer import adagrad_rows, dense_optimizer, rate_shape, square_sum
from elmo_jax.training.softmax_sharding import Part, Placement, ReplicatedRows, ShardedRows, Wanted
from elmo_jax.training.state import TrainState, without, without_softmax
from elmo_jax.types import Tree


class Metrics(NamedTuple):
    """The metrics of a step, which are the same on all devices."""

    loss: jax.Array  # [2] nats per token of each direction, of the softmax that is trained (sampled or full)
    gradient_norm: jax.Array  # before clipping
    learning_rate: jax.Array


@dataclasses.dataclass(frozen=True)
class TrainStep:
    """A step `(state, batch, spellings) -> (state, metrics)`, to be mapped over devices with an axis `data`."""

    model: BiLM  # the model, without softmax
    config: TrainConfig  # the training settings
    total_steps: int  # the number of updates of the run, for the schedule
    vocabulary_size: int  # V
    # the parts of the parameter tree that are not trained, which never include the softmax
    frozen: tuple[str, ...] = ()
    placement: Placement = Placement.REPLICATED  # the placement of the softmax's rows

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """The optimizer of all trained parameters except the softmax."""
        return dense_optimizer(self.config.optimizer, rate_shape(self.config.optimizer, self.total_steps))

    def __call__(self, state: TrainState, batch: TrainingBatch, spellings: jax.Array) -> tuple[TrainState, Metrics]:
        """Makes one update from this device's parts of the state and of the batch.

        `spellings` [types, W] are the raw character ids of the lexicon.

        Returns:
          The new state, and the metrics of the step.
        """
        trained, softmax = without(state.params, "softmax", *self.frozen), state.params["softmax"]
        wanted, exchange = self._wanted(batch), self._exchange()
        rows, fetched = exchange.fetch(softmax, wanted)
        gradients, (losses, carry) = jax.grad(self._loss, (0, 1), has_aux=True)(trained, rows, state, batch, spellings)
        dense_gradient, losses = lax.pmean((gradients[0], losses), AXIS)
        row_gradients = exchange.collect(softmax, wanted, fetched, gradients[1])

        squares = row_gradients.fold(lambda part, total: total + square_sum(part[1]), jnp.zeros(()))
        norm = jnp.sqrt(square_sum(dense_gradient) + exchange.total(squares))
        clip = self.config.optimizer.clip_norm
        scale = clip / jnp.maximum(norm, clip) if clip else jnp.ones(())
        dense_gradient = jax.tree.map(lambda g: g * scale, dense_gradient)

        optimizer = self.config.optimizer
        shape = rate_shape(optimizer, self.total_steps)(state.step)
        updates, dense_state = self.optimizer.update(dense_gradient, state.dense_optimizer, trained)
        rate = (optimizer.softmax_learning_rate or optimizer.learning_rate) * shape

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
        return new, Metrics(losses, norm, optimizer.learning_rate * shape)

    def _wanted(self, batch: TrainingBatch) -> Wanted | None:
        """Returns the rows of the softmax that this device's loss reads in both directions; None means all rows."""
        if not self.config.negatives:
            return None
        words = (batch.window.targets, batch.negatives)
        return Wanted(*(rows_of(ids.reshape(-1), self.vocabulary_size) for ids in words))  # [2TB], [2S]

    def _exchange(self) -> ReplicatedRows | ShardedRows:
        return ShardedRows(self.model.precision) if self.placement is Placement.SHARDED else ReplicatedRows()

    def _loss(self, trained: Tree, rows: Tree, state: TrainState, batch: TrainingBatch, spellings: jax.Array) -> Any:
        """Returns the loss times T, which bilm-tf differentiates, and the losses [2] and the new LSTM state."""
        key = jax.random.wrap_key_data(state.key, impl="threefry2x32")
        key = jax.random.fold_in(jax.random.fold_in(key, state.step), lax.axis_index(AXIS))
        layers, carry = self.model.apply(
            {"params": without_softmax(state.params) | trained},
            spellings[batch.window.words],
            batch.window.inputs,
            state.carry,
            count=batch.window.word_count[0],
            restart=batch.restart if self.config.carry == "block" else None,
            deterministic=False,
            rngs={"dropout": key},
        )
        hidden = layers[-1].reshape(2, -1, layers[-1].shape[-1])  # [2, T * B, P]
        if self.config.negatives:
            losses = _sampled_losses(hidden, rows, batch, self.vocabulary_size, self.model.precision)
        else:
            losses = _full_losses(hidden, rows, batch, self.vocabulary_size, self.model.precision)
        losses = losses.mean(axis=1)  # [2]
        return losses.mean() * self.config.unroll_steps, (losses, carry)


def _sampled_losses(
    hidden: jax.Array, rows: Tree, batch: TrainingBatch, vocabulary_size: int, precision: Precision
) -> jax.Array:
    """Returns the losses [2, T * B]; `rows` are first those of all targets, then those of all negatives."""
    targets = batch.window.targets.reshape(2, -1)  # [2, T * B]
    split = targets.size

    def direction(d: int) -> jax.Array:
        expected = [log_expected_count(ids[d], batch.tries[d], vocabulary_size) for ids in (targets, batch.negatives)]
        of_targets = jax.tree.map(lambda r: r[:split].reshape(*targets.shape, *r.shape[1:])[d], rows)
        of_negatives = jax.tree.map(lambda r: r[split:].reshape(*batch.negatives.shape, *r.shape[1:])[d], rows)
        return sampled_softmax_losses(
            hidden[d],
            (of_targets["kernel"], of_targets["bias"]),
            (of_negatives["kernel"], of_negatives["bias"]),
            targets[d],
            batch.negatives[d],
            (expected[0], expected[1]),
            precision,
        )

    return jnp.stack([direction(d) for d in range(2)])


def _full_losses(
    hidden: jax.Array, rows: Tree, batch: TrainingBatch, vocabulary_size: int, precision: Precision
) -> jax.Array:
    """Returns the losses [2, T * B] over all words of the vocabulary."""
    targets = rows_of(batch.window.targets, vocabulary_size).reshape(2, -1)
    kernel, bias = rows["kernel"], without_padding(rows["bias"], vocabulary_size)
    return jnp.stack(
        [full_softmax_losses(hidden[d], kernel, bias, targets[d], bias.shape[0], precision) for d in range(2)]
    )
