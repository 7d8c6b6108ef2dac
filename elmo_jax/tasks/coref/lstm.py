"""Implements the bidirectional LSTM of the coreference model as in e2e-coref and as in AllenNLP.

Shapes: T steps, B rows, D numbers of input, H units per direction; an axis of 2 holds the forward and the backward
direction.

- "coupled" (original) has the blocks i, j, o; the forget gate is 1 - i; the initial state is learned; dropout acts on
  the state that is fed back, including the initial one:
  `c' = (1 - sigmoid(i)) * c + sigmoid(i) * tanh(j)`, `h' = tanh(c') * sigmoid(o)`.
- "standard" (AllenNLP, which uses PyTorch's) has the blocks i, f, g, o; the initial state is zero.
"""

from collections.abc import Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.model.dropout import variational_mask
from elmo_jax.model.lstm import State
from elmo_jax.model.token_encoder import uniform
from elmo_jax.tasks.layers.dense import block_orthogonal, glorot_uniform
from elmo_jax.tasks.layers.lstm import run_both
from elmo_jax.types import Tree

Cell = Literal["coupled", "standard"]


def bidirectional_lstm(
    params: Tree, inputs: jax.Array, mask: jax.Array, cell: Cell, dropout: jax.Array | None = None
) -> jax.Array:
    """Runs both directions in one scan.

    Args:
      params: `kernel` [2, D + H, 3H or 4H], whose rows are those of the input and then those of the state; `bias`
        [2, 3H or 4H]; and for a coupled cell `initial_cell` and `initial_hidden` [2, H].
      inputs: [B, T, D].
      mask: [B, T], true on words; rows are padded at their end.
      cell: the form of the LSTM.
      dropout: [2, B, H], an already scaled mask on the state that is fed back; None for no dropout.

    Returns:
      [B, T, 2H], zero at padding.
    """
    size = inputs.shape[-1]
    units = params["kernel"].shape[1] - size
    read = jnp.einsum("btd,edz->tebz", inputs, params["kernel"][:, :size], precision=lax.Precision.HIGHEST)
    recurrent = params["kernel"][:, size:]  # [2, H, 3H or 4H]
    gates = _coupled if cell == "coupled" else _standard

    def step(state: State, at: tuple[jax.Array, jax.Array]) -> tuple[State, jax.Array]:
        x, word = at
        fed = state.hidden if dropout is None else state.hidden * dropout
        z = x + jnp.matmul(fed, recurrent, precision=lax.Precision.HIGHEST)  # [2, B, 3H or 4H]
        new = gates(z, state.cell)
        new = State(*(jnp.where(word, n, old) for n, old in zip(new, state, strict=True)))
        return new, new.hidden

    shape = (2, inputs.shape[0], units)
    start = State(jnp.zeros(shape), jnp.zeros(shape))  # of both directions, [2, B, H] each
    if cell == "coupled":
        start = State(*(params[name][:, None] + jnp.zeros(shape) for name in ("initial_cell", "initial_hidden")))
    return run_both(step, start, read + params["bias"][:, None], mask)


def _coupled(z: jax.Array, c: jax.Array) -> State:
    i, j, o = jnp.split(z, 3, axis=-1)
    i = jax.nn.sigmoid(i)
    c = (1 - i) * c + i * jnp.tanh(j)
    return State(c, jnp.tanh(c) * jax.nn.sigmoid(o))


def _standard(z: jax.Array, c: jax.Array) -> State:
    i, f, g, o = jnp.split(z, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return State(c, jax.nn.sigmoid(o) * jnp.tanh(c))


class BiLSTM(nn.Module):
    """A bidirectional LSTM.

    The weights of a coupled cell start with orthonormal columns in each block, input and state together; its biases and
    initial states are Glorot-uniform, which is TensorFlow's default. A standard cell starts as in AllenNLP's
    coreference config: the input's weights are Glorot-normal, those of the state are one orthogonal matrix, and the
    biases are PyTorch's.
    """

    units: int  # H
    cell: Cell  # the form of the LSTM
    # the fraction of the state that is dropped before it is fed back, with one mask per row and direction; it
    # needs a `dropout` key unless the call is deterministic
    dropout: float

    @nn.compact
    def __call__(self, inputs: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Maps [B, T, D] to [B, T, 2H], zero at padding; `mask` [B, T] is true on words. See `bidirectional_lstm`."""
        size, units = inputs.shape[-1], self.units
        blocks = 3 if self.cell == "coupled" else 4
        kernel, bias = (_coupled_kernel, _each(glorot_uniform)) if blocks == 3 else (_standard_kernel, _torch_bias)
        params = {
            "kernel": self.param("kernel", kernel, (2, size + units, blocks * units)),
            "bias": self.param("bias", bias, (2, blocks * units)),
        }
        if self.cell == "coupled":
            for name in ("initial_cell", "initial_hidden"):
                params[name] = self.param(name, _each(_row), (2, units))
        masks = None
        if self.dropout and not deterministic:
            masks = variational_mask(self.make_rng("dropout"), self.dropout, (2, inputs.shape[0], units))
        return bidirectional_lstm(params, inputs, mask, self.cell, masks)


def _each(initializer: Any) -> nn.initializers.Initializer:
    """Returns an initializer that draws the values of each direction independently."""

    def initialize(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        return jnp.stack([initializer(each, tuple(shape[1:]), dtype) for each in jax.random.split(key)])

    return initialize


def _row(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """Returns Glorot-uniform values of a matrix of one row, the form of the initial states in e2e-coref."""
    return glorot_uniform(key, (1, *shape), dtype)[0]


_coupled_kernel = _each(block_orthogonal(3))


def _standard_kernel(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    _, rows, columns = shape
    units = columns // 4
    of_input, of_state = jax.random.split(key)
    read = _each(nn.initializers.glorot_normal())(of_input, (2, rows - units, columns), dtype)
    return jnp.concatenate([read, _each(nn.initializers.orthogonal())(of_state, (2, units, columns), dtype)], axis=1)


def _torch_bias(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """Returns the sum of PyTorch's two biases, each uniform between -1 / sqrt(H) and 1 / sqrt(H)."""
    return uniform((shape[-1] // 4) ** -0.5)(key, (2, *shape), dtype).sum(0)
