"""Compiles a task model for the devices: its training step, with the rules of its optimizer, and its evaluation.

Shapes: B examples per batch.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath
from jax.sharding import NamedSharding

from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.distributed.cpu import available_cores
from elmo_jax.distributed.mesh import REPLICATED, ROWS
from elmo_jax.embedding.bilm import frozen_tree
from elmo_jax.model.precision import standard_promotion
from elmo_jax.runs.result import read_result
from elmo_jax.tasks.core.config import ElmoConfig, TaskOptimizerConfig
from elmo_jax.tasks.core.inputs import Inputs
from elmo_jax.tasks.core.setup import TaskSetup
from elmo_jax.tasks.core.task import TaskOutput
from elmo_jax.types import Tree


def make_optimizer(config: TaskOptimizerConfig) -> optax.GradientTransformation:
    """Returns the optimizer for a learning rate of 1; the training step multiplies its updates by `learning_rate`.

    As in AllenNLP, whose hooks clamp a gradient during the backward pass, elements are bounded before the norm is. Adam
    divides by `sqrt(v) + eps`, Adadelta by `sqrt(v + eps)`, as in PyTorch.
    """
    clips = [optax.clip(config.clip_value)] if config.clip_value else []
    clips += [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    rule = optax.scale_by_adam(config.b1, config.b2, config.eps)
    if config.name == "adadelta":
        rule = optax.scale_by_adadelta(config.rho, config.eps)
    return optax.chain(*clips, rule, optax.scale(-1.0))


def scale_bilm(tree: Tree, factor: Callable[[str, str], Any]) -> Tree:
    """Returns a tree like the parameters, in which the biLM's leaves are multiplied by a factor of their modules."""
    inputs = tree.get("inputs", {})
    if "bilm" not in inputs:
        return tree
    scaled = jax.tree_util.tree_map_with_path(lambda path, x: x * factor(path[0].key, path[1].key), inputs["bilm"])
    return {**tree, "inputs": {**inputs, "bilm": scaled}}


def unfrozen(gradient: Tree, elmo: ElmoConfig, layers: int, epoch: jax.Array) -> Tree:
    """Returns the gradient without that of the biLM's layers which are not trained yet (gradual unfreezing, as ULMFiT).

    One more of the LSTM `layers` is trained after every `unfreeze_epochs`, from the top, and last the token encoder.
    """

    def factor(module: str, layer: str) -> jax.Array:
        order = layers if module == "token_encoder" else layers - 1 - int(layer.removeprefix("layer_"))
        return (epoch >= order * elmo.unfreeze_epochs).astype(jnp.float32)

    return scale_bilm(gradient, factor) if elmo.unfreeze_epochs else gradient


def learning_rate(config: TaskOptimizerConfig, step: int, steps: int, metrics: Sequence[float]) -> float:
    """Returns the learning rate of the update after `step` others, of `steps`, given the dev metrics, oldest first."""
    factor = 1.0
    match config.schedule:
        case "plateau":
            factor = _plateau_factor(config, metrics)
        case "staircase":
            factor = config.decay ** (step // config.decay_steps)
        case "warmup_cosine":
            warmup = min(config.warmup_steps, steps // 2)
            decayed = min((step - warmup) / max(steps - warmup, 1), 1.0)
            factor = (step + 1) / warmup if step < warmup else 0.5 * (1 + math.cos(math.pi * decayed))
    return config.learning_rate * factor


def _plateau_factor(config: TaskOptimizerConfig, metrics: Sequence[float]) -> float:
    """Returns the product of the decays after these dev metrics, as in AllenNLP.

    An evaluation is better only if it exceeds the best so far times 1 + 1e-4. After `plateau_patience` evaluations that
    are not better, the next one that is not better decays the rate, and the count starts again.
    """
    factor, best, bad = 1.0, -float("inf"), 0
    for metric in metrics:
        if metric > (best * (1 + 1e-4) if best > 0 else best):
            best, bad = metric, 0
        else:
            bad += 1
        if bad > config.plateau_patience:
            factor, bad = factor * config.decay, 0
    return factor


Arrays = Mapping[str, Any]
Model = tuple[Tree, Tree]  # the parameters and the frozen arrays of one seed


@flax.struct.dataclass
class BatchArrays:
    """The input of a task model: the arrays of each text (`TextEncoder`), and the others (`Task.arrays`)."""

    texts: tuple[Arrays, ...]
    arrays: Arrays


def no_interval() -> dict[str, Any]:
    """Returns zeros for what is measured between evaluations: the sum of losses, steps, words, and seconds."""
    return {"loss": np.float32(0), "steps": np.int32(0), "words": np.int32(0), "seconds": np.float32(0)}


@flax.struct.dataclass
class TaskState:
    """The state of a training, from which it can be resumed."""

    step: jax.Array  # the number of updates made
    epoch: jax.Array  # the epoch of the next update, from 0
    batch: jax.Array  # the number of the next update's batch in that epoch, from 0
    params: Tree  # the parameters of the task, without those of the frozen biLM
    optimizer: Any  # the state of the optimizer
    average: Tree  # the moving average of the parameters; an empty dict if there is none
    interval: dict[str, Any]  # the measurements since the last evaluation, see `no_interval`


class TaskModule(nn.Module):
    """Joins the inputs of a task and its model."""

    inputs: Inputs
    model: nn.Module

    @nn.compact
    def __call__(self, batch: BatchArrays, *, deterministic: bool) -> tuple[TaskOutput, jax.Array]:
        """Returns the output of the model, and the penalty of the ELMo mixes."""
        texts = [self.inputs(text, deterministic=deterministic) for text in batch.texts]
        embedded, penalties = zip(*texts, strict=True)
        return self.model(*embedded, batch.arrays, deterministic=deterministic), penalties[0]


class Programs:
    """The programs of a function, one per shape of its argument `batch`; they are compiled in threads.

    Numbers have 32 bits in these threads, and what surrounds a call in JAX, such as a trace, does not reach them. So a
    program is the same whoever calls it, and is found in the cache.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self._function, self._programs = jax.jit(function, **options), dict[Any, Future[jax.stages.Compiled]]()

    def compile(self, pool: Executor, state: Any, batch: Any, *arguments: Any) -> Future[jax.stages.Compiled]:
        """Begins to compile the program of some arguments, arrays or their shapes, unless this was done before."""
        shape = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch))
        if shape not in self._programs:
            self._programs[shape] = pool.submit(self._compiled, state, batch, *arguments)
        return self._programs[shape]

    def _compiled(self, *arguments: Any) -> jax.stages.Compiled:
        with jax.enable_x64(False), standard_promotion():
            return self._function.lower(*arguments).compile()

    def __call__(self, *arguments: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:  # starts no thread unless something is submitted
            program = self.compile(pool, *arguments)
        return program.result()(*arguments)


class TaskProgram:
    """The training step and the evaluation of one task, compiled once per shape for all seeds."""

    def __init__(self, setup: TaskSetup[Any, Any]) -> None:
        self._setup, self._settings = setup, setup.config.train.optimizer
        bilm, (rows, dim) = setup.bilm.config if setup.bilm else None, setup.table.vectors.shape
        inputs = Inputs(setup.config, bilm, rows, dim, setup.vocabulary.character_rows)
        self._module = TaskModule(inputs, setup.task.module(setup.config, setup.labels))
        self._optimizer = make_optimizer(self._settings)
        self._placement = NamedSharding(setup.mesh, REPLICATED if setup.task.document_level else ROWS)
        self._everywhere = NamedSharding(setup.mesh, REPLICATED)
        self._start = Programs(self._first_state, out_shardings=self._everywhere)
        self.train_step = Programs(self._train_step, donate_argnums=0, out_shardings=(self._everywhere, None))
        self.evaluate = Programs(self._evaluate)

    def frozen(self, seed: int, layers_are_given: bool) -> Tree:
        """Returns the arrays that are not trained, on the devices: word vectors, and the biLM if it is run."""
        arrays = self._given(seed, trained=False, with_bilm=not layers_are_given)
        return self.replicated({"inputs": arrays}) if arrays else {}

    @functools.cached_property
    def _bilm_tree(self) -> Tree:  # which the models of all seeds share
        assert self._setup.bilm is not None
        return self.replicated(frozen_tree(self._setup.bilm))

    def load(self, workdir: epath.Path, seed: int, layers_are_given: bool) -> Model:
        folder, name = workdir / f"seed_{seed}", "average" if self._settings.ema else "params"
        params, _ = Checkpoints(folder / "checkpoints").restore_params((read_result(folder) or {})["step"], name)
        return self.replicated(params), self.frozen(seed, layers_are_given)

    def replicated(self, tree: Tree) -> Tree:
        return jax.device_put(tree, self._everywhere)

    def first_state(self, seed: int, batch: BatchArrays) -> TaskState:
        """Returns the state before the first update; of the batch only the shapes matter."""
        return self._start(np.uint32(seed), batch, self._given(seed))

    def abstract_state(self, batch: BatchArrays) -> TaskState:
        return self._specs(jax.eval_shape(self._first_state, np.uint32(0), batch, self._given(0)), self._everywhere)

    def _given(self, seed: int, trained: bool = True, with_bilm: bool = True) -> Tree:
        """Returns the word vectors and the biLM, each if it is trained, or else if it is not."""
        given: Tree = {}
        if self._setup.table.vectors.shape[1] and self._setup.config.word_vectors.trainable == trained:
            given["words"] = self._setup.table.first_vectors(seed)
        if with_bilm and self._setup.bilm is not None and (self._setup.config.elmo.trainable != "none") == trained:
            given["bilm"] = self._bilm_tree
        return given

    def _first_state(self, seed: jax.Array, batch: BatchArrays, given: Tree) -> TaskState:
        key = jax.random.key(seed, impl="threefry2x32")
        params = self._module.init({"params": key}, batch, deterministic=True)["params"]
        if given:
            params = {**params, "inputs": {**params["inputs"], **given}}
        zero = jnp.zeros((), jnp.int32)
        average = jax.tree.map(jnp.copy, params) if self._settings.ema else {}
        interval = jax.tree.map(jnp.asarray, no_interval())
        return TaskState(zero, zero, zero, params, self._optimizer.init(params), average, interval)

    @contextlib.contextmanager
    def compiling(self, train: Sequence[BatchArrays], evaluated: Sequence[BatchArrays], frozen: Tree) -> Iterator[None]:
        """Compiles all programs while the caller does other work; of the arguments, only shapes and dtypes matter."""
        pool = ThreadPoolExecutor(available_cores(), thread_name_prefix="compilation")
        state, frozen = self.abstract_state(train[0]), self._specs(frozen, self._everywhere)
        rate, seed = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((), jnp.uint32)
        self._start.compile(pool, seed, train[0], self._given(0))
        for batch in reversed(train):  # the longest texts take longest
            self.train_step.compile(pool, state, self._specs(batch, self._placement), frozen, rate, seed)
        for batch in evaluated:
            self.evaluate.compile(pool, self.evaluated(state), self._specs(batch, self._placement), frozen)
        failed = True
        try:
            yield
            failed = False
        finally:
            pool.shutdown(wait=False, cancel_futures=failed)

    def _specs(self, tree: Any, sharding: NamedSharding) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)

    def device_put(self, batch: BatchArrays) -> BatchArrays:
        return jax.device_put(batch, self._placement)

    def _apply(
        self, params: Tree, batch: BatchArrays, frozen: Tree, key: jax.Array | None
    ) -> tuple[TaskOutput, jax.Array]:
        variables = {"params": params, "frozen": frozen} if frozen else {"params": params}
        rngs = {} if key is None else {"dropout": key}
        output: Any = self._module.apply(variables, batch, deterministic=key is None, rngs=rngs)
        return output

    def _train_step(
        self, state: TaskState, batch: BatchArrays, frozen: Tree, rate: jax.Array, seed: jax.Array
    ) -> tuple[TaskState, jax.Array]:
        """Makes one update; returns the new state and the loss of the batch without the penalties of the mixes."""
        settings = self._settings
        key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), state.step)

        def loss(params: Tree) -> tuple[jax.Array, jax.Array]:
            output, penalty = self._apply(params, batch, frozen, key)
            return output.loss + penalty, output.loss

        gradient, loss_value = jax.grad(loss, has_aux=True)(state.params)
        elmo, bilm = self._setup.config.elmo, self._setup.bilm
        if bilm is not None:
            gradient = unfrozen(gradient, elmo, bilm.config.lstm.layers, state.epoch)
        updates, optimizer = self._optimizer.update(gradient, state.optimizer, state.params)
        if elmo.learning_rate:
            updates = scale_bilm(updates, lambda *_: elmo.learning_rate / settings.learning_rate)
        params = jax.tree.map(lambda p, u: p + rate * u, state.params, updates)
        words = sum(text["mask"].sum(dtype=jnp.int32) for text in batch.texts)
        added = {"loss": loss_value, "steps": 1, "words": words}
        interval = {name: value + added.get(name, 0) for name, value in state.interval.items()}
        # The average starts at the initial weights, and its bias is not corrected.
        average = optax.incremental_update(params, state.average, 1 - settings.ema) if settings.ema else {}
        return TaskState(state.step + 1, state.epoch, state.batch + 1, params, optimizer, average, interval), loss_value

    def _evaluate(self, params: Tree, batch: BatchArrays, frozen: Tree) -> tuple[jax.Array, dict[str, jax.Array]]:
        output, _ = self._apply(params, batch, frozen, None)
        return output.loss, output.predictions

    def evaluated(self, state: TaskState) -> Tree:
        return state.average if self._settings.ema else state.params
