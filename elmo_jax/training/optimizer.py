"""The optimizers: row-wise Adagrad for the softmax, and Optax for all other parameters.

A step of the sampled softmax touches a few thousand of up to 800,000 rows. Since Adagrad does not change a row whose
gradient is zero, updating only the touched rows equals the dense update, without its passes over gigabytes.

Shapes: M rows with repeats, R rows of the softmax, P projection.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from elmo_jax.config import OptimizerConfig
from elmo_jax.types import Tree


def lr_schedule(config: OptimizerConfig, total_steps: int) -> Callable[[jax.Array], jax.Array]:
    """Returns a function from the step to a factor of the learning rates."""
    if config.schedule == "constant":
        return lambda step: jnp.ones((), jnp.float32)
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0 if config.warmup_steps else 1.0,
        peak_value=1.0,
        warmup_steps=config.warmup_steps,
        decay_steps=max(total_steps, config.warmup_steps + 1),
        end_value=config.final_fraction,
    )


def dense_optimizer(
    config: OptimizerConfig, schedule: Callable[[jax.Array], jax.Array]
) -> optax.GradientTransformation:
    """Makes the optimizer of all parameters except the softmax; `schedule` is the result of `lr_schedule`."""

    def rate(step: jax.Array) -> jax.Array:
        return config.learning_rate * schedule(step)

    if config.name == "adam":
        return optax.adam(rate, config.adam_b1, config.adam_b2, config.adam_eps)
    # There is no epsilon, as in bilm-tf, since the accumulator is never zero.
    return optax.chain(optax.scale_by_rss(config.initial_accumulator, eps=0.0), optax.scale_by_learning_rate(rate))


def combine_rows(ids: jax.Array, gradients: Tree, rows: int) -> tuple[jax.Array, Tree]:
    """Adds up the gradients [M, ...] of rows that occur more than once in `ids` [M].

    In the new ids [M], each row occurs once, with its sum; other positions have ids past the end R (`rows`) and zeros.
    """
    indices = jnp.arange(ids.shape[0])
    # Each row is represented by the last place at which it occurs; this needs no sort.
    chosen = jnp.zeros((rows,), indices.dtype).at[ids].max(indices)[ids]  # [M]
    total = jax.tree.map(lambda g: jax.ops.segment_sum(g, chosen, ids.shape[0]), gradients)
    return jnp.where(chosen == indices, ids, rows + indices), total


def adagrad_rows(
    values: jax.Array, accumulator: jax.Array, ids: jax.Array | None, gradient: jax.Array, rate: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Makes one Adagrad update of rows [R, ...] and of their sums of squared gradients, in place if they are donated.

    The `gradient` [M, ...] is that of the rows `ids` [M], each once; ids past the end are ignored. None means all rows.
    """
    if ids is None:
        accumulator = accumulator + gradient**2
        return values - rate * gradient * jax.lax.rsqrt(accumulator), accumulator
    sums = accumulator.at[ids].get(mode="fill", fill_value=1.0) + gradient**2
    change = -rate * gradient * jax.lax.rsqrt(sums)
    return (
        values.at[ids].add(change, mode="drop", unique_indices=True),
        accumulator.at[ids].set(sums, mode="drop", unique_indices=True),
    )


def square_sum(tree: Any) -> jax.Array:
    """Returns the sum of the squares of all elements of a tree."""
    return sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))
