"""Plain LSTMs over padded batches, in one and in both directions.

Shapes: B rows, T steps of the longest, D input, H units of one direction.

A layer is the projected LSTM of `elmo_jax.model.lstm` without projection and clips: its input products are one product
before the scan, and its backward pass is written out, so the gradient of the weights is one product after it. The
gates stand as there: i, g, f, o along 4H (PyTorch stores i, f, g, o), and `kernel` has the rows of the input first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from elmo_jax.model.lstm import FORGET_BIAS, InputProducts, LSTMSettings, State, projected_lstm
from elmo_jax.model.precision import Precision
from elmo_jax.tasks.layers.dense import Initial, uniform
from elmo_jax.tasks.layers.dropout import Dropout, DropoutKind
from elmo_jax.types import Tree

Direction = Literal["forward", "backward"]

_SETTINGS = LSTMSettings(0.0, 0.0, Precision.FLOAT32, InputProducts.BEFORE_SCAN)


def lstm(params: Tree, inputs: jax.Array, mask: jax.Array, direction: Direction) -> jax.Array:
    """Runs one layer in one direction, each row from a zero state.

    The backward direction starts at a row's own last step: on the padding before it, the state stays zero.

    Args:
      params: `kernel` [D + H, 4H] with rows input, hidden; `bias` [4H], the whole bias of the gates.
      inputs: [B, T, D].
      mask: [B, T], true on steps that exist; rows are padded at their end.
      direction: the order in which the steps are read.

    Returns:
      [B, T, H], zero at padding.
    """
    size = params["bias"].shape[0] // 4
    # the projected LSTM adds its forget bias at run time; here it is among the parameters
    bias = params["bias"].at[2 * size : 3 * size].add(-FORGET_BIAS)
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
    """One layer in one direction: the parameters of `lstm` and their initial values.

    Attributes:
      size: H.
      direction: the order in which the steps are read.
      initial: "torch" draws everything from U(±1/sqrt(H)), the bias as the sum of two such numbers, since PyTorch has
        two bias vectors that add. "xavier" has Xavier-uniform input weights, an orthogonal recurrent matrix (one for
        all four gates), and biases of zero, of one for the forget gate.
    """

    size: int
    direction: Direction = "forward"
    initial: Initial = "torch"

    @nn.compact
    def __call__(self, inputs: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps [B, T, D], with a mask [B, T] that is true on steps that exist, to [B, T, H], zero at padding."""
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
    """One layer in both directions: `forward` and `backward`, each an `LSTM` of its own.

    Attributes:
      size: H, units of each direction.
      initial: see `LSTM`.
    """

    size: int
    initial: Initial = "torch"

    @nn.compact
    def __call__(self, inputs: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps [B, T, D], with a mask [B, T], to [B, T, 2H], forward units first, zero at padding."""
        forward = LSTM(self.size, "forward", self.initial, name="forward")(inputs, mask)
        backward = LSTM(self.size, "backward", self.initial, name="backward")(inputs, mask)
        return jnp.concatenate([forward, backward], axis=-1)


class BiLSTMStack(nn.Module):
    """Layers in both directions, `layer_0` and so on, each reading both directions of the one below.

    Attributes:
      sizes: H of each layer, the lowest first.
      dropout: the share of the units dropped between two layers; neither at the bottom nor at the top.
      dropout_kind: of that dropout.
      initial: see `LSTM`.
    """

    sizes: Sequence[int]
    dropout: float = 0.0
    dropout_kind: DropoutKind = "plain"
    initial: Initial = "torch"

    @nn.compact
    def __call__(self, inputs: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Maps [B, T, D], with a mask [B, T], to [B, T, 2H] of the top layer, zero at padding."""
        for i, size in enumerate(self.sizes):
            if i:
                inputs = Dropout(self.dropout, self.dropout_kind)(inputs, deterministic=deterministic)
            inputs = BiLSTM(size, self.initial, name=f"layer_{i}")(inputs, mask)
        return inputs
