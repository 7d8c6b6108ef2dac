"""Compiles a task model for the devices: its training step and its evaluation.

Shapes: B examples per batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from elmo_jax.distributed.mesh import REPLICATED, ROWS
from elmo_jax.tasks.core.config import TaskConfig
from elmo_jax.tasks.core.inputs import Inputs, InputSettings
from elmo_jax.tasks.core.optimizer import averaged, make_optimizer, weight_penalty
from elmo_jax.types import Tree

Arrays = Mapping[str, Any]


@flax.struct.dataclass
class BatchArrays:
    """The input of a task model.

    Attributes:
      texts: the arrays of each text, as `TextEncoder` makes them.
      arrays: the other arrays, as `Task.arrays` makes them.
    """

    texts: tuple[Arrays, ...]
    arrays: Arrays


@flax.struct.dataclass
class TaskState:
    """The state of a training, from which it can be resumed.

    Attributes:
      step: the number of updates made.
      epoch: the epoch of the next update, from 0.
      batch: the number of the next update's batch in that epoch, from 0.
      params: the parameters of the task, without those of the frozen biLM.
      optimizer: the state of the optimizer.
      average: the moving average of the parameters; an empty dict if there is none.
    """

    step: jax.Array
    epoch: jax.Array
    batch: jax.Array
    params: Tree
    optimizer: Any
    average: Tree


class TaskModule(nn.Module):
    """Joins the inputs of a task and its model."""

    settings: InputSettings
    model: nn.Module

    @nn.compact
    def __call__(self, batch: BatchArrays, *, deterministic: bool) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """Returns the loss of the batch, the penalty of the ELMo mixes, and the predictions."""
        inputs = Inputs(self.settings, name="inputs")
        embedded, penalties = zip(*(inputs(text, deterministic=deterministic) for text in batch.texts), strict=True)
        output = self.model(*embedded, batch.arrays, deterministic=deterministic)
        return output.loss, penalties[0], output.predictions


class TaskProgram:
    """The training step and the evaluation of one task, compiled once per shape for all seeds."""

    def __init__(self, config: TaskConfig, settings: InputSettings, model: nn.Module, mesh: Mesh, divide: bool) -> None:
        """Prepares both functions, which are compiled when they are first called.

        Args:
          config: the experiment.
          settings: the settings of the inputs.
          model: the model of the task.
          mesh: the devices.
          divide: whether a batch's arrays are divided over the devices along their first axis.
        """
        self._config, self._settings, self.mesh = config, settings, mesh
        self._module = TaskModule(settings, model)
        self._optimizer = make_optimizer(config.train.optimizer)
        self._placement = NamedSharding(mesh, ROWS if divide else REPLICATED)
        self._everywhere = NamedSharding(mesh, REPLICATED)
        self.train_step = jax.jit(self._train_step, donate_argnums=0)
        self.evaluate = jax.jit(self._evaluate)

    def constants(self, words: np.ndarray | None, bilm: Tree | None) -> Tree:
        """Returns the arrays that are not trained, on the devices.

        Args:
          words: the frozen word vectors; None if there are none.
          bilm: the parameters of the biLM if each step computes its layers, else None.
        """
        found: Tree = {}
        if words is not None:
            found["words"] = words
        if bilm is not None:
            found["bilm"] = bilm
        return jax.device_put({"inputs": found}, self._everywhere) if found else {}

    def replicated(self, tree: Tree) -> Tree:
        """Returns a tree of arrays with a copy on every device, as the parameters of a training have it."""
        return jax.device_put(tree, self._everywhere)

    def first_state(self, seed: int, batch: BatchArrays, words: np.ndarray | None) -> TaskState:
        """Returns the state before the first update.

        Args:
          seed: the random seed for the initial parameters.
          batch: any batch, of which only the shapes matter.
          words: the initial word vectors if they are trained, else None.
        """

        def start(key: jax.Array, batch: BatchArrays, words: jax.Array | None) -> TaskState:
            params = self._module.init({"params": key}, batch, deterministic=True)["params"]
            if words is not None:
                params = {**params, "inputs": {**params["inputs"], "words": words}}
            average = jax.tree.map(jnp.copy, params) if self._config.train.optimizer.ema else {}
            step, epoch, place = (jnp.zeros((), jnp.int32) for _ in range(3))
            return TaskState(step, epoch, place, params, self._optimizer.init(params), average)

        state: TaskState = jax.jit(start, out_shardings=self._everywhere)(
            jax.random.key(seed, impl="threefry2x32"), batch, words
        )
        return state

    def place(self, batch: BatchArrays) -> BatchArrays:
        """Copies a batch from the host to the devices."""
        return jax.tree.map(lambda array: jax.device_put(array, self._placement), batch)

    def _apply(
        self, params: Tree, batch: BatchArrays, constants: Tree, key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """Applies the module, with dropout if a key is given."""
        variables = {"params": params, "constants": constants} if constants else {"params": params}
        rngs = {} if key is None else {"dropout": key}
        found: Any = self._module.apply(variables, batch, deterministic=key is None, rngs=rngs)
        loss, penalty, predictions = found
        return loss, penalty, predictions

    def _train_step(
        self, state: TaskState, batch: BatchArrays, constants: Tree, rate: jax.Array, seed: jax.Array
    ) -> tuple[TaskState, jax.Array]:
        """Makes one update; also returns the loss without the penalties of the mixes and of `weight_decay`."""
        settings = self._config.train.optimizer
        key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), state.step)

        def loss(params: Tree) -> tuple[jax.Array, jax.Array]:
            found, penalty, _ = self._apply(params, batch, constants, key)
            return found + penalty + weight_penalty(params, settings.weight_decay), found

        gradient, found = jax.grad(loss, has_aux=True)(state.params)
        updates, optimizer = self._optimizer.update(gradient, state.optimizer, state.params)
        params = jax.tree.map(lambda p, u: p + rate * u, state.params, updates)
        average = averaged(state.average, params, settings.ema) if settings.ema else {}
        new = dataclasses.replace(
            state, step=state.step + 1, params=params, optimizer=optimizer, average=average, batch=state.batch + 1
        )
        return new, found

    def _evaluate(self, params: Tree, batch: BatchArrays, constants: Tree) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Returns the loss and the predictions of a batch, without dropout."""
        loss, _, predictions = self._apply(params, batch, constants, None)
        return loss, predictions

    def evaluated(self, state: TaskState) -> Tree:
        """Returns the parameters that evaluations use: the moving average if there is one."""
        return state.average if self._config.train.optimizer.ema else state.params
