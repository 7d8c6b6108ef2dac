"""A training step of the plain biLM of `model/reference.py`, with which that of `pretrain` is compared.

It has the same architecture, batches, negatives of the sampled softmax and optimizer as `pretrain`; but every token is
encoded on its own, JAX derives all gradients, and Optax updates every row of the softmax. It has no dropout, and every
batch starts from zero states, which saves it some work.

Shapes: T steps, B rows, W characters per word, P projection, V vocabulary.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from elmo_jax.config import Config
from elmo_jax.data.batches import TrainingBatch
from elmo_jax.model import reference
from elmo_jax.model.softmax import log_expected_count, sampled_softmax_losses
from elmo_jax.training.optimizer import dense_optimizer, lr_schedule
from elmo_jax.types import Tree


@dataclasses.dataclass(frozen=True)
class PlainStep:
    """A training step of the plain biLM on one device."""

    config: Config  # the settings, with one learning rate for all parameters
    vocabulary_size: int  # V
    total_steps: int  # the number of updates of the run, for the schedule

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """The optimizer of all parameters."""
        settings = self.config.train.optimizer
        update = dense_optimizer(settings, lr_schedule(settings, self.total_steps))
        return optax.chain(optax.clip_by_global_norm(settings.clip_norm), update) if settings.clip_norm else update

    def __call__(self, params: Tree, state: Any, batch: TrainingBatch, char_ids: jax.Array) -> tuple[Tree, Any]:
        """Makes one update.

        Args:
          params: the whole parameter tree, with the rows of the softmax in the order of the vocabulary.
          state: the state of the optimizer.
          batch: a batch for one device.
          char_ids: [types, W] the raw character ids of the lexicon.

        Returns:
          The new parameters and the new state of the optimizer.
        """
        gradient = jax.grad(self._loss)(params, batch, char_ids)
        updates, state = self.optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    def _loss(self, params: Tree, batch: TrainingBatch, char_ids: jax.Array) -> jax.Array:
        """Returns the loss times T, which bilm-tf differentiates."""
        characters = char_ids[batch.window.words][batch.window.inputs]  # [2, T, B, W]
        hidden = reference.top_layer(params, characters, self.config.model)  # [2, T * B, P]
        targets, softmax, losses = batch.window.targets.reshape(2, -1), params["softmax"], []
        for d in range(2):
            negatives, num_draws = batch.negatives[d], batch.num_draws[d]
            losses.append(
                sampled_softmax_losses(
                    hidden[d],
                    (softmax["kernel"][targets[d]], softmax["bias"][targets[d]]),
                    (softmax["kernel"][negatives], softmax["bias"][negatives]),
                    targets[d],
                    negatives,
                    (
                        log_expected_count(targets[d], num_draws, self.vocabulary_size),
                        log_expected_count(negatives, num_draws, self.vocabulary_size),
                    ),
                )
            )
        return jnp.stack(losses).mean() * self.config.train.unroll_steps
