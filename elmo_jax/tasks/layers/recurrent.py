"""Implements the recurrent layers of the task models over padded batches.

Shapes: B rows, T steps, D numbers of input, H units per direction, Z pre-activations per step, of which the first N
read the state. An axis of 2 holds the forward and the backward direction.

A cell maps pre-activations and the previous state to the new state, element by element, and `recurrence` scans over it.
Its backward pass is written: the gradient of the recurrent matrix is one product after the reverse scan, while autodiff
would add up a matrix of that size at every step.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.model.bilm import uniform
from elmo_jax.model.dropout import Dropout, DropoutKind, variational_mask
from elmo_jax.tasks.layers.dense import Initial, block_orthogonal, each_direction, glorot_uniform, product

Direction = Literal["forward", "backward"]

State = tuple[jax.Array, ...]
"""Arrays [B, H]: the hidden state, after the cell state if there is one."""

Cell = Callable[[jax.Array, State], State]


def lstm_cell(z: jax.Array, state: State) -> State:
    """Maps [..., 4H], the gates i, g, f, o, and the state to the new state; PyTorch's order is i, f, g, o."""
    i, g, f, o = jnp.split(z, 4, axis=-1)
    cell = jax.nn.sigmoid(f) * state[0] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return cell, jax.nn.sigmoid(o) * jnp.tanh(cell)


def highway_cell(z: jax.Array, state: State) -> State:
    """Maps [..., 6H], the blocks i, f, o, r, j, k, and the state to the new state; deep_srl adds 1 to f at run time."""
    i, f, o, r, j, k = jnp.split(z, 6, axis=-1)
    r = jax.nn.sigmoid(r)
    cell = jax.nn.sigmoid(i) * jnp.tanh(j) + jax.nn.sigmoid(f + 1.0) * state[0]
    return cell, r * jax.nn.sigmoid(o) * jnp.tanh(cell) + (1 - r) * k


def coupled_cell(z: jax.Array, state: State) -> State:
    """Maps [..., 3H], the blocks i, j, o, and the state to the new state, with the forget gate 1 - i (e2e-coref)."""
    i, j, o = jnp.split(z, 3, axis=-1)
    i = jax.nn.sigmoid(i)
    cell = (1 - i) * state[0] + i * jnp.tanh(j)
    return cell, jnp.tanh(cell) * jax.nn.sigmoid(o)


def gru_cell(z: jax.Array, state: State) -> State:
    """Maps [..., 4H] and the state to the new state of cuDNN's GRU, which resets the state after its product.

    The blocks are r, z, and of the new value the state's and the input's part.
    """
    r, z, from_state, from_input = jnp.split(z, 4, axis=-1)
    r, z = jax.nn.sigmoid(r), jax.nn.sigmoid(z)
    return ((1 - z) * jnp.tanh(from_input + r * from_state) + z * state[0],)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def recurrence(
    cell: Cell,
    direction: Direction,
    recurrent: jax.Array,  # [H, N]
    read: jax.Array,  # [T, B, Z], the pre-activations without the state, whose products go to the first N columns
    state: State,
    real: jax.Array,  # [T, B, 1], true on words
    dropout: jax.Array | float,  # [B, H], an already scaled mask on the hidden state that is fed back; 1 for none
) -> jax.Array:
    """Runs a cell over all steps, and returns the hidden states [T, B, H], zero at padding.

    The state does not change at padding, so that a row does not depend on it. All arrays can have one more axis before
    B or H, for several layers at once.
    """
    return _forward(cell, direction, recurrent, read, state, real, dropout)[0]


def _forward(cell: Cell, direction: Direction, *arrays: Any) -> Any:
    recurrent, read, state, real, dropout = arrays
    columns = recurrent.shape[-1]

    def step(state: State, at: tuple[jax.Array, jax.Array]) -> tuple[State, Any]:
        x, word = at
        added = product(state[-1] * dropout, recurrent)
        z = jnp.concatenate([x[..., :columns] + added, x[..., columns:]], axis=-1)
        new = tuple(jnp.where(word, n, old) for n, old in zip(cell(z, state), state, strict=True))
        return new, (new[-1], z, state)

    _, (hidden, z, before) = lax.scan(step, state, (read, real), reverse=direction == "backward")
    return jnp.where(real, hidden, 0), (recurrent, z, before, real, dropout)


def _backward(cell: Cell, direction: Direction, residuals: Any, d_outputs: Any) -> Any:
    recurrent, z, before, real, dropout = residuals
    columns = recurrent.shape[-1]

    def step(d_state: State, at: Any) -> tuple[State, jax.Array]:
        d_output, z, before, word = at
        d_new = tuple(jnp.where(word, d, 0) for d in (*d_state[:-1], d_state[-1] + d_output))
        d_z, d_before = jax.vjp(cell, z, before)[1](d_new)
        d_fed = product(d_z[..., :columns], recurrent.swapaxes(-1, -2))
        d_before = (*d_before[:-1], d_before[-1] + d_fed * dropout)
        return tuple(jnp.where(word, d, stay) for d, stay in zip(d_before, d_state, strict=True)), d_z

    d_last = tuple(jnp.zeros_like(state[0]) for state in before)
    d_first, d_z = lax.scan(step, d_last, (d_outputs, z, before, real), reverse=direction == "forward")
    fed = before[-1] * dropout
    d_recurrent = jnp.einsum("t...bh,t...bz->...hz", fed, d_z[..., :columns], precision=lax.Precision.HIGHEST)
    return d_recurrent, d_z, d_first, None, None


recurrence.defvjp(_forward, _backward)


def bidirectional(
    cell: Cell, recurrent: jax.Array, read: jax.Array, state: State, mask: jax.Array, dropout: jax.Array | float = 1.0
) -> jax.Array:
    """Returns the hidden states of both directions of a layer, run in one scan, [B, T, 2H], zero at padding.

    The arrays are those of `recurrence` with an axis of 2 before B or H; `read` [T, 2, B, Z] has both directions in the
    order of the words, and `mask` [B, T] is true on words, with padding at the end.
    """
    real = jnp.stack([mask.T, mask.T[::-1]], axis=1)[..., None]
    read = jnp.stack([read[:, 0], read[::-1, 1]], axis=1)  # the backward direction starts at the end
    hidden = recurrence(cell, "forward", recurrent, read, state, real, dropout)
    return jnp.concatenate([hidden[:, 0], hidden[::-1, 1]], axis=-1).swapaxes(0, 1)


def _read(inputs: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Maps [B, T, D] by the matrix [2, D, Z] and the bias [2, Z] of each direction to [T, 2, B, Z]."""
    return jnp.einsum("btd,edz->tebz", inputs, kernel, precision=lax.Precision.HIGHEST) + bias[:, None]


class LSTM(nn.Module):
    """One layer in one direction from a zero state; `kernel` is [D + H, 4H], input first, and `bias` [4H]."""

    size: int  # H
    direction: Direction = "forward"
    # With "torch", each bias is the sum of two numbers, since PyTorch adds two bias vectors. With "xavier", the rows of
    # the recurrent matrix are orthonormal over all four gates, and the biases of the forget gate are one.
    initial: Initial = "torch"

    @nn.compact
    def __call__(self, inputs: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps inputs [B, T, D] and a mask [B, T], true on steps that exist, to [B, T, H], zero at padding."""
        size = inputs.shape[-1]
        kernel = self.param("kernel", self._kernel, (size + self.size, 4 * self.size))
        bias = self.param("bias", self._bias, (4 * self.size,))
        read = product(inputs.swapaxes(0, 1), kernel[:size]) + bias  # [T, B, 4H]
        zero = jnp.zeros((len(inputs), self.size), read.dtype)
        hidden = recurrence(lstm_cell, self.direction, kernel[size:], read, (zero, zero), mask.T[..., None], 1.0)
        return hidden.swapaxes(0, 1)

    def _kernel(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        if self.initial == "torch":
            return uniform(self.size**-0.5)(key, shape)
        input_key, hidden_key = jax.random.split(key)
        read = nn.initializers.xavier_uniform()(input_key, (shape[0] - self.size, shape[1]))
        fed_back = nn.initializers.orthogonal()(hidden_key, (self.size, shape[1]))
        return jnp.concatenate([read, fed_back])

    def _bias(self, key: jax.Array, shape: tuple[int]) -> jax.Array:
        if self.initial == "torch":
            return uniform(self.size**-0.5)(key, (2, *shape)).sum(0)
        return jnp.zeros(shape).at[2 * self.size : 3 * self.size].set(1.0)


class BiLSTM(nn.Module):
    """One layer in both directions, the `LSTM`s `forward` and `backward`."""

    size: int  # H
    initial: Initial = "torch"  # see `LSTM`

    @nn.compact
    def __call__(self, inputs: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps inputs [B, T, D] and a mask [B, T] to [B, T, 2H], forward units first, zero at padding."""
        forward = LSTM(self.size, "forward", self.initial, name="forward")(inputs, mask)
        backward = LSTM(self.size, "backward", self.initial, name="backward")(inputs, mask)
        return jnp.concatenate([forward, backward], axis=-1)


class BiLSTMStack(nn.Module):
    """A stack of layers in both directions, `layer_0` and so on, each reading both directions of the one below."""

    sizes: Sequence[int]  # H of each layer, the lowest first
    dropout: float = 0.0  # the fraction of the units dropped between two layers
    dropout_kind: DropoutKind = "plain"

    @nn.compact
    def __call__(
        self, inputs: jax.Array, mask: jax.Array, after_first: jax.Array | None = None, *, deterministic: bool = True
    ) -> jax.Array:
        """Maps inputs [B, T, D] and a mask [B, T] to the top layer's outputs [B, T, 2H], zero at padding.

        Vectors `after_first` [B, T, E] are joined to the first layer's outputs, also if it is the only layer.
        """
        for i, size in enumerate(self.sizes):
            if i:
                inputs = Dropout(self.dropout, self.dropout_kind)(inputs, deterministic=deterministic)
            inputs = BiLSTM(size, name=f"layer_{i}")(inputs, mask)
            if i == 0 and after_first is not None:
                inputs = jnp.concatenate([inputs, after_first], axis=-1)
        return inputs


class HighwayLayer(nn.Module):
    """One highway LSTM layer; `kernel` is [D, 6H], `recurrent` [H, 5H], with orthogonal blocks, and `bias` [6H] zero.

    Dropout acts on the hidden state itself: the next step and the next layer read the dropped values.
    """

    units: int  # H
    direction: Direction

    @nn.compact
    def __call__(self, inputs: jax.Array, mask: jax.Array, dropout: jax.Array | float) -> jax.Array:
        """Maps [T, B, D], a mask of words [T, B] and one of dropout [B, H] to [T, B, H]."""
        kernel = self.param("kernel", block_orthogonal(6), (inputs.shape[-1], 6 * self.units))
        recurrent = self.param("recurrent", block_orthogonal(5), (self.units, 5 * self.units))
        bias = self.param("bias", nn.initializers.zeros, (6 * self.units,))
        read = product(inputs, kernel) + bias  # [T, B, 6H]
        start = (jnp.zeros((inputs.shape[1], self.units), read.dtype),) * 2
        hidden = recurrence(highway_cell, self.direction, recurrent, read, start, mask[..., None], dropout)
        return hidden * dropout


class HighwayLSTM(nn.Module):
    """Interleaved highway LSTM layers (He et al. 2017; Zhang et al. 2016), the RNN of the SRL model.

    Layer 0 runs forward, layer 1 backward over the output of layer 0, and so on; directions are never concatenated.
    """

    layers: int = 8  # L
    units: int = 300  # H
    dropout: float = 0.1  # the rate of the recurrent dropout, with one mask per layer and row

    @nn.compact
    def __call__(self, inputs: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Maps [B, T, D] to [B, T, H], zero at padding; `mask` [B, T] is true on words, and padding is at the end."""
        dropout: Any = [1.0] * self.layers
        if self.dropout and not deterministic:
            shape = (self.layers, inputs.shape[0], self.units)
            dropout = variational_mask(self.make_rng("dropout"), self.dropout, shape)
        hidden = inputs.swapaxes(0, 1)
        for number in range(self.layers):
            layer = HighwayLayer(self.units, "backward" if number % 2 else "forward", name=f"layer_{number}")
            hidden = layer(hidden, mask.T, dropout[number])
        return hidden.swapaxes(0, 1)


class CoupledBiLSTM(nn.Module):
    """The bidirectional LSTM of e2e-coref, with learned initial states and dropout on the state that is fed back.

    The weights [2, D + H, 3H], input first, start with orthonormal columns in each block; the biases and initial states
    are Glorot-uniform, which is TensorFlow's default.
    """

    units: int  # H
    # the fraction of the state that is dropped before it is fed back, the initial one included, with one mask per row
    # and direction
    dropout: float

    @nn.compact
    def __call__(self, inputs: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Maps [B, T, D] to [B, T, 2H], zero at padding; `mask` [B, T] is true on words, and padding is at the end."""
        (rows, _, size), units = inputs.shape, self.units
        kernel = self.param("kernel", each_direction(block_orthogonal(3)), (2, size + units, 3 * units))
        bias = self.param("bias", each_direction(glorot_uniform), (2, 3 * units))
        row = each_direction(lambda key, shape: glorot_uniform(key, (1, *shape))[0])  # a matrix of one row in e2e-coref
        initial = (self.param(name, row, (2, units)) for name in ("initial_cell", "initial_hidden"))
        start = tuple(jnp.broadcast_to(state[:, None], (2, rows, units)) for state in initial)
        dropout: jax.Array | float = 1.0
        if self.dropout and not deterministic:
            dropout = variational_mask(self.make_rng("dropout"), self.dropout, (2, rows, units))
        read = _read(inputs, kernel[:, :size], bias)  # [T, 2, B, 3H]
        return bidirectional(coupled_cell, kernel[:, size:], read, start, mask, dropout)


class BiGRU(nn.Module):
    """The bidirectional GRU of document-qa, from a zero state; the columns of `kernel` and `recurrent` are r, z, n.

    Weights start truncated normal with standard deviation 0.05, biases at zero, as in the original.
    """

    units: int  # H

    @nn.compact
    def __call__(self, inputs: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps [B, T, D] to [B, T, 2H], zero at padding; `mask` [B, T] is true on words, and padding is at the end."""
        normal, zeros, units = nn.initializers.truncated_normal(0.05), nn.initializers.zeros_init(), self.units
        kernel = self.param("kernel", normal, (2, inputs.shape[-1], 3 * units))
        recurrent = self.param("recurrent", normal, (2, units, 3 * units))
        bias = self.param("bias", zeros, (2, 3 * units))
        recurrent_bias = self.param("recurrent_bias", zeros, (2, units))  # of the state's part of n
        read = _read(inputs, kernel, bias)  # [T, 2, B, 3H]
        constant = jnp.broadcast_to(recurrent_bias[:, None], (*read.shape[:-1], units))
        read = jnp.concatenate([read[..., : 2 * units], constant, read[..., 2 * units :]], axis=-1)  # [T, 2, B, 4H]
        start = jnp.zeros((2, len(inputs), units), read.dtype)
        return bidirectional(gru_cell, recurrent, read, (start,), mask)
