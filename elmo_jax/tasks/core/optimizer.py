"""Updates a task's parameters: Optax rules, clipping, learning rate schedules and the moving average of the weights."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from elmo_jax.tasks.core.config import ElmoConfig, TaskOptimizerConfig
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

    The top LSTM layer is trained from the first epoch on, and one more layer after every `unfreeze_epochs`; the token
    encoder is the last one. `layers` is the number of LSTM layers, and `epoch` counts from 0.
    """

    def factor(module: str, layer: str) -> jax.Array:
        order = layers if module == "token_encoder" else layers - 1 - int(layer.removeprefix("layer_"))
        return (epoch >= order * elmo.unfreeze_epochs).astype(jnp.float32)

    return scale_bilm(gradient, factor) if elmo.unfreeze_epochs else gradient


def learning_rate(config: TaskOptimizerConfig, step: int, steps: int, metrics: Sequence[float]) -> float:
    """Returns the learning rate of the update after `step` others, of a training of `steps` updates.

    The `metrics` are the dev metrics of the evaluations so far, oldest first; see `trainer.dev_metrics`.
    """
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
    """Returns the product of the decays after these dev metrics.

    As in AllenNLP, an evaluation is better only if it exceeds the best so far times 1 + 1e-4. After `plateau_patience`
    evaluations that are not better, the next one that is not better decays the rate, and the count starts again.
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
