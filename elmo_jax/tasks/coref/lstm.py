"""Implements the bidirectional LSTM of e2e-coref.

Shapes: T steps, B rows, D numbers of input, H units per direction; an axis of 2 holds the forward and the backward
direction.

The gates have the blocks i, j, o; the forget gate is 1 - i; the initial state is learned; dropout acts on the state
that is fed back, including the initial one:
`c' = (1 - sigmoid(i)) * c + sigmoid(i) * tanh(j)`, `h' = tanh(c') * sigmoid(o)`.
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.model.dropout import variational_mask
from elmo_jax.model.lstm import State
from elmo_jax.tasks.layers.dense import block_orthogonal, glorot_uniform
from elmo_jax.tasks.layers.lstm import run_both
from elmo_jax.types import Tree


def bidirectional_lstm(params: Tree, inputs: jax.Array, mask: jax.Array, dropout: jax.Array | None = None) -> jax.Array:
    """Runs both directions in one scan.

    Args:
      params: `kernel` [2, D + H, 3H], whose rows are those of the input and then those of the state; `bias` [2, 3H];
        `initial_cell` and `initial_hidden` [2, H].
      inputs: [B, T, D].
      mask: [B, T], true on words; rows are padded at their end.
      dropout: [2, B, H], an already scaled mask on the state that is fed back; None for no dropout.

    Returns:
      [B, T, 2H], zero at padding.
    """
    size = inputs.shape[-1]
    units = params["kernel"].shape[1] - size
    read = jnp.einsum("btd,edz->tebz", inputs, params["kernel"][:, :size], precision=lax.Precision.HIGHEST)
    recurrent = params["kernel"][:, size:]  # [2, H, 3H]

    def step(state: State, at: tuple[jax.Array, jax.Array]) -> tuple[State, jax.Array]:
        x, word = at
        fed = state.hidden if dropout is None else state.hidden * dropout
        z = x + jnp.matmul(fed, recurrent, precision=lax.Precision.HIGHEST)  # [2, B, 3H]
        new = _gates(z, state.cell)
        new = State(*(jnp.where(word, n, old) for n, old in zip(new, state, strict=True)))
        return new, new.hidden

    shape = (2, inputs.shape[0], units)
    start = State(*(params[name][:, None] + jnp.zeros(shape) for name in ("initial_cell", "initial_hidden")))
    return run_both(step, start, read + params["bias"][:, None], mask)


def _gates(z: jax.Array, c: jax.Array) -> State:
    i, j, o = jnp.split(z, 3, axis=-1)
    i = jax.nn.sigmoid(i)
    c = (1 - i) * c + i * jnp.tanh(j)
    return State(c, jnp.tanh(c) * jax.nn.sigmoid(o))


class BiLSTM(nn.Module):
    """A bidirectional LSTM.

    The weights start with orthonormal columns in each block, input and state together; the biases and initial states
    are Glorot-uniform, which is TensorFlow's default.
    """

    units: int  # H
    # the fraction of the state that is dropped before it is fed back, with one mask per row and direction; it
    # needs a `dropout` key unless the call is deterministic
    dropout: float

    @nn.compact
    def __call__(self, inputs: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Maps [B, T, D] to [B, T, 2H], zero at padding; `mask` [B, T] is true on words. See `bidirectional_lstm`."""
        size, units = inputs.shape[-1], self.units
        params = {
            "kernel": self.param("kernel", _each(block_orthogonal(3)), (2, size + units, 3 * units)),
            "bias": self.param("bias", _each(glorot_uniform), (2, 3 * units)),
            "initial_cell": self.param("initial_cell", _each(_row), (2, units)),
            "initial_hidden": self.param("initial_hidden", _each(_row), (2, units)),
        }
        masks = None
        if self.dropout and not deterministic:
            masks = variational_mask(self.make_rng("dropout"), self.dropout, (2, inputs.shape[0], units))
        return bidirectional_lstm(params, inputs, mask, masks)


def _each(initializer: Any) -> nn.initializers.Initializer:
    """Returns an initializer that draws the values of each direction independently."""

    def initialize(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        return jnp.stack([initializer(each, tuple(shape[1:]), dtype) for each in jax.random.split(key)])

    return initialize


def _row(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """Returns Glorot-uniform values of a matrix of one row, the form of the initial states in e2e-coref."""
    return glorot_uniform(key, (1, *shape), dtype)[0]
