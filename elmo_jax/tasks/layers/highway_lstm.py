"""Implements interleaved highway LSTM layers (He et al. 2017; Zhang et al. 2016), the RNN of the SRL model.

Shapes: L layers, T steps, B rows, I numbers of input, H units per layer.

Layer 0 runs forward, layer 1 backward over the output of layer 0, and so on; directions are never concatenated. With
the input x, and the state h and c of the previous step in the layer's direction:

    i, f, o, r = sigmoid(W x + U h + b)      j = tanh(W_j x + U_j h + b_j)      k = W_k x + b_k
    c' = i * j + f * c                       h' = r * (o * tanh(c')) + (1 - r) * k

The blocks are in the order i, f, o, r, j, k along the columns, 1 is added to the forget gate at run time, and dropout
acts on h' itself, so that both the next step and the next layer read the dropped value, all as in deep_srl.

The written backward pass of the recurrence keeps the gates and makes the gradient of U one product after the reverse
scan, while autodiff adds up a matrix of U's size at every step.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.model.dropout import variational_mask
from elmo_jax.model.lstm import State
from elmo_jax.tasks.layers.dense import block_orthogonal
from elmo_jax.tasks.layers.lstm import Direction
from elmo_jax.types import Tree

FORGET_BIAS = 1.0
_GATES = "iforj"  # the blocks that read the state, in the order of their columns; k follows them


class Arrays(NamedTuple):
    """The arrays that a recurrence reads."""

    read: jax.Array  # [T, B, 5H], the input's products with the kernel plus the bias, of the blocks that read the state
    carried: jax.Array  # [T, B, H], those of the block k
    recurrent: jax.Array  # [H, 5H], the matrix U
    real: jax.Array  # [T, B, 1], 1 on words and 0 at padding
    dropout: jax.Array | None  # [B, H], an already scaled mask; None for no dropout


def run(arrays: Arrays, direction: Direction) -> tuple[jax.Array, State]:
    """Runs one layer over all steps from a zero state; JAX's autodiff makes the backward pass.

    Returns:
      The outputs [T, B, H], zero at padding, and the state after the last step.
    """
    return _run_forward(arrays, direction)[0]


def _run_forward(arrays: Arrays, direction: Direction) -> Any:
    read, carried, recurrent, real, dropout = arrays

    def step(state: State, at: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[State, Any]:
        x, k, word = at
        z = x + jnp.matmul(state.hidden, recurrent, precision=lax.Precision.HIGHEST)  # [B, 5H]
        i, f, o, r, j = jnp.split(z, len(_GATES), axis=-1)
        i, f, o, r = map(jax.nn.sigmoid, (i, f + FORGET_BIAS, o, r))
        j = jnp.tanh(j)
        cell = i * j + f * state.cell
        hidden = r * (o * jnp.tanh(cell)) + (1 - r) * k
        new = State(cell, hidden if dropout is None else hidden * dropout)
        new = State(*(jnp.where(word > 0, n, old) for n, old in zip(new, state, strict=True)))
        return new, (new, (i, f, o, r, j))

    zero = jnp.zeros((read.shape[1], recurrent.shape[0]), read.dtype)  # [B, H]
    last, (states, gates) = lax.scan(step, State(zero, zero), (read, carried, real), reverse=direction == "backward")
    return (states.hidden * real, last), (arrays, states, gates)


def _run_backward(direction: Direction, residuals: Any, gradients: Any) -> Any:
    arrays, states, gates = residuals
    _, carried, recurrent, real, dropout = arrays
    d_outputs, d_last = gradients
    before = State(*(_shifted(sequence, direction) for sequence in states))

    def step(d_state: State, at: Any) -> tuple[State, Any]:
        d_output, (i, f, o, r, j), cell, cell_before, k, word = at
        stay = State(d_state.cell * (1 - word), d_state.hidden * (1 - word))
        d_hidden = (d_output + d_state.hidden) * word * (1.0 if dropout is None else dropout)
        squashed = jnp.tanh(cell)
        d_r = d_hidden * (o * squashed - k) * r * (1 - r)
        d_hidden, d_k = d_hidden * r, d_hidden * (1 - r)
        d_cell = d_state.cell * word + d_hidden * o * (1 - squashed**2)
        d_o = d_hidden * squashed * o * (1 - o)
        d_i = d_cell * j * i * (1 - i)
        d_f = d_cell * cell_before * f * (1 - f)
        d_j = d_cell * i * (1 - j**2)
        d_z = jnp.concatenate([d_i, d_f, d_o, d_r, d_j], axis=-1)  # [B, 5H]
        d_before = lax.dot_general(d_z, recurrent, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)
        return State(d_cell * f + stay.cell, d_before + stay.hidden), (d_z, d_k)

    at = (d_outputs, gates, states.cell, before.cell, carried, real)
    _, (d_read, d_carried) = lax.scan(step, State(*d_last), at, reverse=direction == "forward")
    d_recurrent = jnp.einsum("tbh,tbz->hz", before.hidden, d_read, precision=lax.Precision.HIGHEST)
    return (arrays._replace(read=d_read, carried=d_carried, recurrent=d_recurrent, real=None, dropout=None),)


# `run` with the written backward pass.
run_written = partial(jax.custom_vjp, nondiff_argnums=(1,))(run)
run_written.defvjp(_run_forward, _run_backward)


def _shifted(sequence: jax.Array, direction: Direction) -> jax.Array:
    """Returns the element before each step, [T, B, H]; zero before the first step."""
    first = jnp.zeros_like(sequence[:1])
    parts = [first, sequence[:-1]] if direction == "forward" else [sequence[1:], first]
    return jnp.concatenate(parts)


def highway_stack(
    layers: Sequence[Tree], inputs: jax.Array, mask: jax.Array, dropout: jax.Array | None = None
) -> tuple[jax.Array, list[State]]:
    """Runs the layers on [T, B, I] in alternating directions, the first one forward; `dropout` is [L, B, H].

    Returns:
      The outputs [T, B, H], and each layer's state after the last step in its direction; see `highway_layer`.
    """
    states = []
    for number, params in enumerate(layers):
        direction: Direction = "backward" if number % 2 else "forward"
        inputs, state = highway_layer(params, inputs, mask, direction, None if dropout is None else dropout[number])
        states.append(state)
    return inputs, states


def highway_layer(
    params: Tree, inputs: jax.Array, mask: jax.Array, direction: Direction, dropout: jax.Array | None = None
) -> tuple[jax.Array, State]:
    """Runs one layer; a backward layer starts at the last word of each row.

    Args:
      params: `kernel` [I, 6H], `recurrent` [H, 5H] and `bias` [6H].
      inputs: [T, B, I].
      mask: [T, B], true on words; rows are padded at their end.
      direction: the order of the steps.
      dropout: [B, H], an already scaled mask; None for no dropout.

    Returns:
      The outputs [T, B, H], zero at padding, and the state after the last step.
    """
    blocks = params["recurrent"].shape[1]
    read = jnp.matmul(inputs, params["kernel"], precision=lax.Precision.HIGHEST) + params["bias"]  # [T, B, 6H]
    real = mask[..., None].astype(read.dtype)  # [T, B, 1]
    arrays = Arrays(read[..., :blocks], read[..., blocks:], params["recurrent"], real, dropout)
    return run_written(arrays, direction)


class HighwayLayer(nn.Module):
    """Declares the parameters of one layer, for `highway_layer`.

    Every block of `kernel` and `recurrent` starts orthogonal, and the bias starts at zero.
    """

    inputs: int  # I
    units: int  # H

    @nn.compact
    def __call__(self) -> Tree:
        """Returns the parameters; see `highway_layer`."""
        blocks = {"kernel": (self.inputs, len(_GATES) + 1), "recurrent": (self.units, len(_GATES))}
        params = {
            name: self.param(name, block_orthogonal(number), (rows, number * self.units))
            for name, (rows, number) in blocks.items()
        }
        bias = self.param("bias", nn.initializers.zeros, ((len(_GATES) + 1) * self.units,))
        return {**params, "bias": bias}


class HighwayLSTM(nn.Module):
    """A stack of highway LSTM layers in alternating directions."""

    layers: int = 8  # L; the paper has 8
    units: int = 300  # H; the paper has 300
    # the rate of the recurrent dropout, with one mask per layer and row; it needs a `dropout` key unless the
    # call is deterministic
    dropout: float = 0.1

    @nn.compact
    def __call__(
        self, inputs: jax.Array, mask: jax.Array, *, deterministic: bool = True, dropout_masks: jax.Array | None = None
    ) -> jax.Array:
        """Maps [B, T, I] to [B, T, H], zero at padding; `mask` [B, T] is true on words, and padding is at the end.

        The already scaled `dropout_masks` [L, B, H] are used instead of random ones.
        """
        sizes = [inputs.shape[-1]] + [self.units] * (self.layers - 1)
        params = [HighwayLayer(size, self.units, name=f"layer_{number}")() for number, size in enumerate(sizes)]
        if dropout_masks is None and self.dropout and not deterministic:
            shape = (self.layers, inputs.shape[0], self.units)
            dropout_masks = variational_mask(self.make_rng("dropout"), self.dropout, shape)
        outputs, _ = highway_stack(params, inputs.swapaxes(0, 1), mask.T, dropout_masks)
        return outputs.swapaxes(0, 1)
