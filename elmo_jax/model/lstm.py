"""One projected LSTM layer of one direction (paper, section 3.1; Sak et al. 2014).

Shapes: T steps, B rows, D input, C cells, P projection. The gates are i, j, f, o in that order along 4C, as in the
original.

The backward pass is written by hand: the forward pass stores the gates and the cells, and the gradients of the weights
are one product after the scan instead of a sum at every step. Gates, and arrays that only matrix products read, are
stored as operands of products; in bfloat16 this halves their memory and the time to write and read them.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.config import LSTMConfig
from elmo_jax.model.precision import Precision, standard_promotion, varying_like
from elmo_jax.types import Tree

FORGET_BIAS = 1.0  # original; added at run time and not stored in parameter files


class State(NamedTuple):
    """The state of one layer, from which a row continues."""

    cell: jax.Array  # [B, C]
    hidden: jax.Array  # [B, P], before any residual


@dataclasses.dataclass(frozen=True)
class LSTMSettings:
    """The static settings of a layer's program."""

    cell_clip: float
    projection_clip: float
    precision: Precision
    bf16_as_uint16: bool = False  # whether loops store bfloat16 numbers as integers of the same bits; see `LSTMForm`
    together: bool = False  # whether the directions are computed together, in one loop

    @classmethod
    def of(cls, config: LSTMConfig, precision: Precision, **form: Any) -> "LSTMSettings":
        """Makes the settings from a config; without a projection matrix, the projection is not clipped."""
        projection_clip = config.projection_clip if config.cells != config.projection else 0.0
        return cls(config.cell_clip, projection_clip, precision, **form)

    def per_direction(self, function: Any, in_axes: Any = 0) -> Any:
        return jax.vmap(function, in_axes) if self.together else function

    def steps_first(self, arrays: Any) -> Any:
        """Moves the axis of steps before that of directions, [2, T, ...] to [T, 2, ...], or back."""
        return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), arrays) if self.together else arrays

    def divided(self, arrays: Any) -> list[Any]:
        """Returns the arrays of each direction. A TPU would copy the two parts of an array that a loop has filled."""
        if not self.together:
            return [arrays]
        leaves, tree = jax.tree.flatten(arrays)
        return [jax.tree.unflatten(tree, parts) for parts in zip(*leaves, strict=True)]

    def joined(self, arrays: list[Any]) -> Any:
        return jax.tree.map(lambda *x: jnp.stack(x), *arrays) if self.together else arrays[0]


def projected_lstm(
    # `kernel` [D + P, 4C], the rows of the input first, `bias` [4C] and, unless C = P, `projection` [C, P]
    params: Tree,
    inputs: jax.Array,  # [T, B, D]
    state: State,
    settings: LSTMSettings,
    mask: jax.Array | None = None,  # [T, B] false for padding, where the state does not change and the output is zero
    reset_state: jax.Array | None = None,  # [T, B] true for tokens before which the state is reset to zero
) -> tuple[jax.Array, State]:
    """Runs one layer over time, and returns the outputs [T, B, P], float32, and the state after the last step.

    With `settings.together`, all arguments but `reset_state` and both results have a first axis of directions.
    """
    mask = None if mask is None else mask[..., None].astype(jnp.float32)
    keep = None if reset_state is None else 1 - reset_state[..., None].astype(jnp.float32)
    return _run(params, inputs, state, mask, keep, settings)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _run(
    params: Tree,
    inputs: jax.Array,
    state: State,
    mask: jax.Array | None,
    keep: jax.Array | None,
    settings: LSTMSettings,
) -> Any:
    return _run_forward(params, inputs, state, mask, keep, settings)[0]


def _clip(x: jax.Array, bound: float) -> jax.Array:
    return jnp.clip(x, -bound, bound) if bound else x


def _inside(x: jax.Array, bound: float) -> jax.Array | float:
    """Returns the derivative of `_clip` with respect to its input, computed from its output."""
    return jnp.abs(x) < bound if bound else 1.0


def _written(settings: LSTMSettings, *arrays: jax.Array | None) -> Any:
    """Rounds arrays as operands of products, in the type in which a loop stores them."""
    rounded = jax.tree.map(settings.precision.operand, arrays)
    to_bits = settings.bf16_as_uint16 and settings.precision is Precision.BFLOAT16
    return jax.tree.map(lambda x: lax.bitcast_convert_type(x, jnp.uint16), rounded) if to_bits else rounded


def _read(arrays: Any) -> Any:
    return jax.tree.map(lambda x: lax.bitcast_convert_type(x, jnp.bfloat16) if x.dtype == jnp.uint16 else x, arrays)


def _reset(state: State, keep: jax.Array | None) -> State:
    return state if keep is None else State(state.cell * keep, state.hidden * keep)


def _cell(z: jax.Array, cell: jax.Array, clip: float, axis: int) -> tuple[Sequence[jax.Array], jax.Array, jax.Array]:
    """Returns the gates, the new cell, and the hidden state before the projection; `axis` has the four gates."""
    i, j, f, o = jnp.split(z, 4, axis)
    i, j, f, o = jax.nn.sigmoid(i), jnp.tanh(j), jax.nn.sigmoid(f + FORGET_BIAS), jax.nn.sigmoid(o)
    cell = _clip(f * cell + i * j, clip)
    return (i, j, f, o), cell, o * jnp.tanh(cell)


def inference_step(params: Tree, x: jax.Array, state: State, settings: LSTMSettings, columns: bool = False) -> State:
    """Advances a layer by one step of `projected_lstm`, without what a backward pass would need; `x` is [B, D].

    The matrices are rounded as operands of products. With `columns`, matrices, `x` and state are transposed, and the
    bias is [4C, 1], as is faster on CPUs, since the weights are on the left then.
    """
    product = settings.precision.product
    operands = jnp.concatenate([x, state.hidden], axis=0 if columns else -1)
    z = (product(params["kernel"], operands) if columns else product(operands, params["kernel"])) + params["bias"]
    _, cell, hidden = _cell(z, state.cell, settings.cell_clip, axis=0 if columns else -1)
    if "projection" in params:
        projection = params["projection"]
        hidden = product(projection, hidden) if columns else product(hidden, projection)
        hidden = _clip(hidden, settings.projection_clip)
    return State(cell, hidden)


def _run_forward(
    params: Tree,
    inputs: jax.Array,
    state: State,
    mask: jax.Array | None,
    keep: jax.Array | None,
    settings: LSTMSettings,
) -> Any:
    product = settings.precision.product
    # The matrices are rounded once, before the loop.
    weights = {name: p if name == "bias" else settings.precision.operand(p) for name, p in params.items()}

    def step(weights: Tree, state: State, x: jax.Array, real: jax.Array | None, kept: jax.Array | None) -> Any:
        state = _reset(state, kept)
        z = product(jnp.concatenate([x, state.hidden], axis=-1), weights["kernel"]) + weights["bias"]  # [B, 4C]
        gates, cell, hidden = _cell(z, state.cell, settings.cell_clip, axis=-1)  # [B, C]
        if "projection" in weights:
            hidden = _clip(product(hidden, weights["projection"]), settings.projection_clip)  # [B, P]
        new = State(cell, hidden)
        if real is not None:
            new = State(*(jnp.where(real > 0, n, old) for n, old in zip(new, state, strict=True)))
        return new, (new.hidden, _written(settings, *gates), new.cell)

    step_per_direction = settings.per_direction(step, (0, 0, 0, 0, None))
    at = (*settings.steps_first((inputs, mask)), keep)
    last, (hidden, gates, cells) = _scan(lambda state, at: step_per_direction(weights, state, *at), state, at)
    outputs = settings.steps_first(hidden)
    outputs = outputs if mask is None else outputs * mask
    return (outputs, last), (weights, inputs, state, mask, keep, hidden, gates, cells)


@standard_promotion()  # which does not see the context in which the forward pass was called
def _run_backward(settings: LSTMSettings, residuals: Any, gradients: Any) -> tuple[Tree, jax.Array, State, None, None]:
    weights, inputs, state, mask, keep, hidden, gates, cells = residuals
    d_outputs, d_last = gradients
    product, operand = settings.precision.product, settings.precision.operand
    size = inputs.shape[-1]

    # Eight parameters: the weights, the totals, what the forward pass stored, and the masks of one step.
    def step(
        weights: Tree,
        totals: tuple[State, jax.Array, jax.Array],
        d_output: jax.Array,
        gates: Any,
        hidden: jax.Array,
        before: jax.Array,
        real: jax.Array | None,
        kept: jax.Array | None,
    ) -> Any:
        d_state, cell, d_bias = totals
        d_hidden, d_cell = d_state.hidden, d_state.cell
        i, j, f, o = (gate.astype(jnp.float32) for gate in _read(gates))
        started = before if kept is None else before * kept
        if real is not None:
            stay = State(d_cell * (1 - real), d_hidden * (1 - real))
            d_output, d_hidden, d_cell = d_output * real, d_hidden * real, d_cell * real
        d_hidden = d_hidden + d_output
        if "projection" in weights:
            d_hidden = d_hidden * _inside(hidden, settings.projection_clip)
            d_inner = product(d_hidden, weights["projection"], (1, 1))  # [B, C]
        else:
            d_inner = d_hidden
        squashed = jnp.tanh(cell)
        d_cell = (d_cell + d_inner * o * (1 - squashed**2)) * _inside(cell, settings.cell_clip)
        d_i, d_j = d_cell * j * i * (1 - i), d_cell * i * (1 - j**2)
        d_f, d_o = d_cell * started * f * (1 - f), d_inner * squashed * o * (1 - o)
        d_z = jnp.concatenate([d_i, d_j, d_f, d_o], axis=-1)  # [B, 4C]
        d_before = State(d_cell * f, product(d_z, weights["kernel"][size:], (1, 1)))
        if real is not None:
            d_before = State(*(b + s for b, s in zip(d_before, stay, strict=True)))
        inner = o * squashed if "projection" in weights else None  # [B, C], the input of the projection
        written = _written(settings, operand(d_z), operand(d_hidden), inner)
        return (_reset(d_before, kept), before, d_bias + d_z.sum(0)), written

    step_per_direction = settings.per_direction(step, (0, 0, 0, 0, 0, 0, 0, None))

    def at_step(totals: Any, at: Any) -> tuple[Any, list[Any]]:
        t, (d_output, real), gates, hidden, kept = at
        # The previous cell is read from `cells`, since a shifted copy of all cells would cost another write and read.
        before = jnp.where(t > 0, lax.dynamic_index_in_dim(cells, jnp.maximum(t - 1, 0), keepdims=False), state.cell)
        totals, written = step_per_direction(weights, totals, d_output, gates, hidden, before, real, kept)
        return totals, settings.divided(written)

    at = (jnp.arange(len(cells)), settings.steps_first((d_outputs, mask)), gates, hidden, keep)
    start = (State(*d_last), cells[-1], jnp.zeros_like(weights["bias"]))
    (d_state, _, d_bias), written = _scan(at_step, start, at, reverse=True)

    def of_direction(given: Any, written: Any) -> tuple[Tree, jax.Array]:
        weights, inputs, first, hidden = given
        d_z, d_hidden, inner = _read(written)
        read = jnp.concatenate([first[None], hidden[:-1]])
        read = jnp.concatenate([inputs, read if keep is None else read * keep], axis=-1)  # [T, B, D + P]
        d_params = {"kernel": settings.precision.summed_product(read, d_z)}
        if inner is not None:
            d_params["projection"] = settings.precision.summed_product(inner, d_hidden)
        return d_params, product(d_z, weights["kernel"][:size], (2, 1))

    given = settings.divided((weights, inputs, state.hidden, settings.steps_first(hidden)))
    d_params, d_inputs = settings.joined(list(map(of_direction, given, written)))
    return {**d_params, "bias": d_bias}, d_inputs, d_state, None, None


_run.defvjp(_run_forward, _run_backward)


def _scan(step: Any, carry: Any, xs: Any, reverse: bool = False) -> tuple[Any, Any]:
    """Makes `lax.scan`, which would first write zeros into the arrays of the results on GPUs and TPUs."""
    results = jax.eval_shape(step, carry, jax.tree.map(lambda x: x[0], xs))[1]
    steps = len(jax.tree.leaves(xs)[0])
    filled = varying_like(jax.tree.map(lambda y: lax.empty((steps, *y.shape), y.dtype), results), (carry, xs))

    def body(state: Any, at: Any) -> tuple[Any, None]:
        (carry, filled), (t, x) = state, at
        carry, results = step(carry, x)
        filled = jax.tree.map(lambda y, part: lax.dynamic_update_index_in_dim(y, part, t, 0), filled, results)
        return (carry, filled), None

    return lax.scan(body, (carry, filled), (jnp.arange(steps), xs), reverse=reverse)[0]


class ProjectedLSTM(nn.Module):
    """The parameters of one layer, whose input has the dimension P, as `projected_lstm` expects them."""

    config: LSTMConfig

    @nn.compact
    def __call__(self) -> Tree:
        config = self.config
        glorot = nn.initializers.glorot_uniform()
        params: Tree = {
            "kernel": self.param("kernel", glorot, (2 * config.projection, 4 * config.cells)),
            "bias": self.param("bias", nn.initializers.zeros_init(), (4 * config.cells,)),
        }
        if config.cells != config.projection:
            params["projection"] = self.param("projection", glorot, (config.cells, config.projection))
        return params
