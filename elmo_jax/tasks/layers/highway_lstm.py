"""Implements interleaved highway LSTM layers (He et al. 2017; Zhang et al. 2016), the RNN of the SRL model.

Shapes: L layers, T steps, B rows, I numbers of input, H units per layer.

Layer 0 runs forward, layer 1 backward over the output of layer 0, and so on; directions are never concatenated. With
the input x, and the state h and c of the previous step in the layer's direction:

    i, f, o, r = sigmoid(W x + U h + b)      j = tanh(W_j x + U_j h + b_j)      k = W_k x + b_k
    c' = i * j + f * c                       h' = r * (o * tanh(c')) + (1 - r) * k

The state that is fed back is h' after the highway mix. Two programs have this layer in different forms:

- "original" (deep_srl) has the blocks in the order i, f, o, r, j, k; 1 is added to the forget gate at run time; dropout
  acts on h' itself, so both the next step and the next layer read the dropped value.
- "allennlp" has the blocks in the order i, f, j, o, r, k; the forget gate's bias starts at 1; dropout acts only on the
  state that is fed back.

The module `highway_recurrence` has the recurrence and its backward pass.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.model.dropout import variational_mask
from elmo_jax.tasks.layers.highway_recurrence import FORGET_BIAS, Arrays, HighwaySettings, State, run_written
from elmo_jax.tasks.layers.initial_values import block_orthogonal
from elmo_jax.types import Tree

Bias = Literal["all", "gates"]


def highway_stack(
    layers: Sequence[Tree],
    inputs: jax.Array,
    mask: jax.Array,
    settings: HighwaySettings,
    dropout: jax.Array | None = None,
) -> tuple[jax.Array, list[State]]:
    """Runs the layers on [T, B, I] in alternating directions, the first one forward; `dropout` is [L, B, H].

    Returns:
      The outputs [T, B, H], and each layer's state after the last step in its direction; see `highway_layer`.
    """
    states = []
    for number, params in enumerate(layers):
        own = dataclasses.replace(settings, direction="backward" if number % 2 else "forward")
        inputs, state = highway_layer(params, inputs, mask, own, None if dropout is None else dropout[number])
        states.append(state)
    return inputs, states


def highway_layer(
    params: Tree, inputs: jax.Array, mask: jax.Array, settings: HighwaySettings, dropout: jax.Array | None = None
) -> tuple[jax.Array, State]:
    """Runs one layer; a backward layer starts at the last word of each row.

    Args:
      params: `kernel` [I, 6H], `recurrent` [H, 5H], and `bias` [6H] or, if k has none, [5H]; without a highway they are
        [I, 4H], [H, 4H] and [4H].
      inputs: [T, B, I].
      mask: [T, B], true on words; rows are padded at their end.
      settings: the settings of the layer.
      dropout: [B, H], an already scaled mask; None for no dropout.

    Returns:
      The outputs [T, B, H], zero at padding, and the state after the last step.
    """
    blocks = params["recurrent"].shape[1]
    bias = params["bias"]
    read = jnp.matmul(inputs, params["kernel"], precision=lax.Precision.HIGHEST)  # [T, B, 6H]
    read = read + jnp.pad(bias, (0, read.shape[-1] - bias.shape[0]))
    carried = read[..., blocks:] if settings.carries_input else None  # [T, B, H]
    real = mask[..., None].astype(read.dtype)  # [T, B, 1]
    return run_written(Arrays(read[..., :blocks], carried, params["recurrent"], real, dropout), settings)


class HighwayLayer(nn.Module):
    """Declares the parameters of one layer, for `highway_layer`.

    Every block of `kernel` and `recurrent` starts orthogonal.
    """

    inputs: int  # I
    units: int  # H
    settings: HighwaySettings  # the settings of the layer
    bias: Bias = "all"  # "all" if each block has a bias, or "gates" if k has none, as in AllenNLP's ELMo configs

    @nn.compact
    def __call__(self) -> Tree:
        """Returns the parameters; see `highway_layer`."""
        seeing = len(self.settings.order)
        blocks = seeing + self.settings.carries_input
        biased = blocks if self.bias == "all" else seeing

        def forget_bias(key: jax.Array, shape: tuple[int], dtype: Any = jnp.float32) -> jax.Array:
            stored = FORGET_BIAS if self.settings.form == "allennlp" else 0.0
            column = self.settings.order.index("f")
            return jnp.zeros(shape, dtype).at[column * self.units : (column + 1) * self.units].set(stored)

        return {
            "kernel": self.param("kernel", block_orthogonal(blocks), (self.inputs, blocks * self.units)),
            "recurrent": self.param("recurrent", block_orthogonal(seeing), (self.units, seeing * self.units)),
            "bias": self.param("bias", forget_bias, (biased * self.units,)),
        }


class HighwayLSTM(nn.Module):
    """A stack of highway LSTM layers in alternating directions."""

    layers: int = 8  # L; the paper has 8
    units: int = 300  # H; the paper has 300
    settings: HighwaySettings = HighwaySettings()  # the settings of all layers
    bias: Bias = "all"  # see `HighwayLayer`
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
        params = [
            HighwayLayer(size, self.units, self.settings, self.bias, name=f"layer_{number}")()
            for number, size in enumerate(sizes)
        ]
        if dropout_masks is None and self.dropout and not deterministic:
            shape = (self.layers, inputs.shape[0], self.units)
            dropout_masks = variational_mask(self.make_rng("dropout"), self.dropout, shape)
        outputs, _ = highway_stack(params, inputs.swapaxes(0, 1), mask.T, self.settings, dropout_masks)
        return outputs.swapaxes(0, 1)
