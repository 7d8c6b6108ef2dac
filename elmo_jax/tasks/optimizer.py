"""Updates of a task's parameters: Optax, clips, schedules and the average of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from elmo_jax.tasks.config import TaskOptimizerConfig
from elmo_jax.types import Tree


def make_optimizer(config: TaskOptimizerConfig) -> optax.GradientTransformation:
    """The optimizer for a rate of 1; `update` multiplies its result by the rate of the step."""
    clips: list[optax.GradientTransformation] = []
    if config.clip_norm:
        clips.append(optax.clip_by_global_norm(config.clip_norm))
    if config.clip_value:
        clips.append(optax.clip(config.clip_value))
    match config.name:
        case "adam":
            rule = optax.scale_by_adam(config.b1, config.b2, config.eps)
        case "adadelta":
            rule = optax.scale_by_adadelta(config.rho, config.eps)
        case "adagrad":
            rule = optax.scale_by_rss(initial_accumulator_value=0.0, eps=config.eps)
        case "sgd":
            rule = optax.identity()
    return optax.chain(*clips, rule, optax.scale(-1.0))


def rate(config: TaskOptimizerConfig, step: jax.Array, factor: jax.Array) -> jax.Array:
    """The learning rate of a step; `factor` is that of the plateau schedule."""
    found = config.learning_rate * factor
    if config.schedule == "staircase":
        found *= jnp.asarray(config.decay, jnp.float32) ** (step // config.decay_steps)
    return found


def plateau_factor(config: TaskOptimizerConfig, metrics: Sequence[float]) -> float:
    """What the plateau schedule has multiplied the rate by, after these dev metrics.

    As AllenNLP's: an evaluation is better only above the best so far times 1 + 1e-4; after `plateau_patience`
    evaluations that are not, the next one that is not decays the rate, and the count starts again.
    """
    if config.schedule != "plateau":
        return 1.0
    factor, best, bad = 1.0, -float("inf"), 0
    for metric in metrics:
        if metric > (best * (1 + 1e-4) if best > 0 else best):
            best, bad = metric, 0
        else:
            bad += 1
        if bad > config.plateau_patience:
            factor, bad = factor * config.decay, 0
    return factor


def weight_penalty(params: Tree, factor: float) -> jax.Array:
    """The factor times the sum of squares of all matrices, biases and vectors left out."""
    if not factor:
        return jnp.zeros(())
    matrices = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim >= 2]
    return factor * sum((jnp.sum(leaf**2) for leaf in matrices), start=jnp.zeros(()))


def averaged(average: Any, params: Any, decay: float) -> Any:
    """The moving average of all weights after a step; it starts at the initial weights and is not corrected."""
    return jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)
