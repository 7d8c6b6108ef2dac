"""Implements plain LSTMs over padded batches, in one and in both directions.

Shapes: B rows, T steps of the longest row, D numbers of input, H units per direction.

A layer is the projected LSTM of `elmo_jax.model.lstm` without projection and clipping. The products of all inputs are
computed as one before the scan, and the gradient of the weights as one after the backward scan. The gates have
the same order along 4H as there: i, g, f, o (PyTorch's is i, f, g, o). The rows of `kernel` are those of the input
and then those of the state.
"""

from collections.abc import Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.model.dropout import Dropout, DropoutKind
from elmo_jax.model.lstm import FORGET_BIAS, InputProducts, LSTMSettings, State, projected_lstm
from elmo_jax.model.precision import Precision
from elmo_jax.model.token_encoder import uniform
from elmo_jax.tasks.layers.dense import Initial
from elmo_jax.types import Tree

Direction = Literal["forward", "backward"]

_SETTINGS = LSTMSettings(0.0, 0.0, Precision.FLOAT32, InputProducts.BEFORE_SCAN)


def lstm(params: Tree, inputs: jax.Array, mask: jax.Array, direction: Direction) -> jax.Array:
    """Runs one layer in one direction, each row from a zero state.

    The backward direction starts at the last step of a row, since the state stays zero on padding.

    Args:
      params: `kernel` [D + H, 4H], and `bias` [4H], which is the whole bias of the gates.
      inputs: [B, T, D].
      mask: [B, T], true on steps that exist; rows are padded at their end.
      direction: the order in which the steps are read.

    Returns:
      The outputs [B, T, H], zero at padding.
    """
    size = params["bias"].shape[0] // 4
    # The projected LSTM adds its forget bias at run time, but here it is part of the parameters.
    bias = jnp.asarray(params["bias"]).at[2 * size : 3 * size].add(-FORGET_BIAS)
    steps, real = inputs.swapaxes(0, 1), mask.T  # [T, B, D], [T, B]
    if direction == "backward":
        steps, real = steps[::-1], real[::-1]
    zero = jnp.zeros((inputs.shape[0], size), jnp.float32)
    arguments = {"kernel": params["kernel"], "bias": bias}
    outputs, _ = projected_lstm(arguments, steps, State(zero, zero), _SETTINGS, real)
    if direction == "backward":
        outputs = outputs[::-1]
    return outputs.swapaxes(0, 1)  # [B, T, H]


class LSTM(nn.Module):
    """One layer in one direction; declares the parameters of `lstm`."""

    size: int  # H
    direction: Direction = "forward"  # the order in which the steps are read
    # "torch" draws all values from U(±1/sqrt(H)), and each bias as the sum of two of them, since PyTorch adds
    # two bias vectors. "xavier" has Xavier-uniform input weights, one orthogonal recurrent matrix for all four
    # gates, and biases of zero, except those of the forget gate, which are one
    initial: Initial = "torch"

    @nn.compact
    def __call__(self, inputs: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps inputs [B, T, D] and a mask [B, T], true on steps that exist, to [B, T, H], zero at padding."""
        rows = inputs.shape[-1] + self.size
        params = {
            "kernel": self.param("kernel", self._kernel, (rows, 4 * self.size)),
            "bias": self.param("bias", self._bias, (4 * self.size,)),
        }
        return lstm(params, inputs, mask, self.direction)

    def _kernel(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        if self.initial == "torch":
            return uniform(self.size**-0.5)(key, shape)
        input_key, hidden_key = jax.random.split(key)
        input_shape, hidden_shape = (shape[0] - self.size, shape[1]), (self.size, shape[1])
        read = nn.initializers.xavier_uniform()(input_key, input_shape)  # [D, 4H]
        fed_back = nn.initializers.orthogonal()(hidden_key, hidden_shape)  # [H, 4H], orthonormal rows
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
    # the fraction of the units dropped between two layers, but neither at the bottom nor at the top
    dropout: float = 0.0
    dropout_kind: DropoutKind = "plain"  # the kind of that dropout
    initial: Initial = "torch"  # see `LSTM`

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
            inputs = BiLSTM(size, self.initial, name=f"layer_{i}")(inputs, mask)
            if i == 0 and after_first is not None:
                inputs = jnp.concatenate([inputs, after_first], axis=-1)
        return inputs


def run_both(step: Any, start: Any, read: jax.Array, mask: jax.Array) -> jax.Array:
    """Runs both directions of a layer in one scan, in which each step is one product for both.

    An axis of 2 holds the forward and the backward direction. The backward direction reads the steps in reverse order
    and so a row's padding first, where its state must not change.

    Args:
      step: maps the state and, of one step, `read` [2, B, ...] and whether it is a word [2, B, 1] to the new state and
        its output [2, B, H].
      start: the state before the first step.
      read: [T, 2, B, ...], what each direction reads, both in the order of the words.
      mask: [B, T], true on words.

    Returns:
      The outputs of both directions next to each other, [B, T, 2H], zero at padding.
    """
    real = turn_backward(jnp.stack([mask.T, mask.T], axis=1)[..., None])
    _, hidden = lax.scan(step, start, (turn_backward(read), real))
    both = turn_backward(hidden)
    outputs = jnp.concatenate([both[:, 0], both[:, 1]], axis=-1).swapaxes(0, 1)
    return jnp.where(mask[..., None], outputs, 0.0)


def turn_backward(x: jax.Array) -> jax.Array:
    """Returns `x` [T, 2, ...] with the backward direction's steps reversed; the function is its own inverse."""
    return jnp.stack([x[:, 0], x[::-1, 1]], axis=1)
