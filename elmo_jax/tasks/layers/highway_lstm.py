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

The written backward pass of the recurrence keeps the gates and makes the gradient of U one product after the reverse
scan, while autodiff adds up a matrix of U's size at every step.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.model.dropout import variational_mask
from elmo_jax.model.lstm import State
from elmo_jax.tasks.layers.dense import block_orthogonal
from elmo_jax.tasks.layers.lstm import Direction
from elmo_jax.types import Tree

Bias = Literal["all", "gates"]
FORGET_BIAS = 1.0

Form = Literal["original", "allennlp"]

ORDERS = {"original": "iforj", "allennlp": "ifjor"}  # the orders of the blocks that read the state; k follows them


@dataclasses.dataclass(frozen=True)
class HighwaySettings:
    """The settings of a highway LSTM layer."""

    form: Form = "original"  # the program whose layer this is; see `highway_lstm`
    highway: Literal["gated", "none"] = "gated"  # "gated", or "none" for a plain LSTM without the blocks r and k
    direction: Direction = "forward"  # the order of the steps

    @property
    def order(self) -> str:
        """The letters of the blocks that read the state, in the order of their columns."""
        order = ORDERS[self.form]
        return order if self.highway == "gated" else order.replace("r", "")

    @property
    def carries_input(self) -> bool:
        """Whether there is a block k, the projected input that bypasses the LSTM."""
        return self.highway == "gated"


class Arrays(NamedTuple):
    """The arrays that a recurrence reads."""

    read: jax.Array  # [T, B, 5H], the input's products with the kernel plus the bias, of the blocks that read the state
    carried: jax.Array | None  # [T, B, H], those of the block k; None without a highway
    recurrent: jax.Array  # [H, 5H], the matrix U
    real: jax.Array  # [T, B, 1], 1 on words and 0 at padding
    dropout: jax.Array | None  # [B, H], an already scaled mask; None for no dropout


def run(arrays: Arrays, settings: HighwaySettings) -> tuple[jax.Array, State]:
    """Runs one layer over all steps from a zero state; JAX's autodiff makes the backward pass.

    Returns:
      The outputs [T, B, H], zero at padding, and the state after the last step.
    """
    return _run_forward(arrays, settings)[0]


def _run_forward(arrays: Arrays, settings: HighwaySettings) -> Any:
    read, carried, recurrent, real, dropout = arrays
    fed, emitted = _places(dropout, settings)
    runtime_bias = FORGET_BIAS if settings.form == "original" else 0.0

    def step(state: State, at: tuple[jax.Array, jax.Array | None, jax.Array]) -> tuple[State, Any]:
        x, k, word = at
        z = x + jnp.matmul(state.hidden * fed, recurrent, precision=lax.Precision.HIGHEST)  # [B, 5H]
        gates = _split(z, settings)
        gates = {
            name: jnp.tanh(gate) if name == "j" else jax.nn.sigmoid(gate + runtime_bias if name == "f" else gate)
            for name, gate in gates.items()
        }
        cell = gates["i"] * gates["j"] + gates["f"] * state.cell
        hidden = gates["o"] * jnp.tanh(cell)
        if k is not None:
            hidden = gates["r"] * hidden + (1 - gates["r"]) * k
        new = State(cell, hidden * emitted)
        new = State(*(jnp.where(word > 0, n, old) for n, old in zip(new, state, strict=True)))
        return new, (new, gates)

    zero = jnp.zeros((read.shape[1], recurrent.shape[0]), read.dtype)  # [B, H]
    last, (states, gates) = lax.scan(
        step, State(zero, zero), (read, carried, real), reverse=settings.direction == "backward"
    )
    return (states.hidden * real, last), (arrays, states, gates)


def _run_backward(settings: HighwaySettings, residuals: Any, gradients: Any) -> Any:
    arrays, states, gates = residuals
    _, carried, recurrent, real, dropout = arrays
    d_outputs, d_last = gradients
    fed, emitted = _places(dropout, settings)
    before = State(*(_shifted(sequence, settings.direction) for sequence in states))

    def step(d_state: State, at: Any) -> tuple[State, Any]:
        d_output, g, cell, cell_before, k, word = at
        stay = State(d_state.cell * (1 - word), d_state.hidden * (1 - word))
        d_hidden = (d_output + d_state.hidden) * word * emitted
        squashed = jnp.tanh(cell)
        d_gates, d_k = {}, None
        if k is not None:
            d_gates["r"] = d_hidden * (g["o"] * squashed - k) * g["r"] * (1 - g["r"])
            d_hidden, d_k = d_hidden * g["r"], d_hidden * (1 - g["r"])
        d_cell = d_state.cell * word + d_hidden * g["o"] * (1 - squashed**2)
        d_gates["o"] = d_hidden * squashed * g["o"] * (1 - g["o"])
        d_gates["i"] = d_cell * g["j"] * g["i"] * (1 - g["i"])
        d_gates["f"] = d_cell * cell_before * g["f"] * (1 - g["f"])
        d_gates["j"] = d_cell * g["i"] * (1 - g["j"] ** 2)
        d_z = jnp.concatenate([d_gates[name] for name in settings.order], axis=-1)  # [B, 5H]
        d_before = fed * lax.dot_general(d_z, recurrent, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)
        return State(d_cell * g["f"] + stay.cell, d_before + stay.hidden), (d_z, d_k)

    at = (d_outputs, gates, states.cell, before.cell, carried, real)
    _, (d_read, d_carried) = lax.scan(step, State(*d_last), at, reverse=settings.direction == "forward")
    d_recurrent = jnp.einsum("tbh,tbz->hz", before.hidden * fed, d_read, precision=lax.Precision.HIGHEST)
    return (arrays._replace(read=d_read, carried=d_carried, recurrent=d_recurrent, real=None, dropout=None),)


# `run` with the written backward pass.
run_written = partial(jax.custom_vjp, nondiff_argnums=(1,))(run)
run_written.defvjp(_run_forward, _run_backward)


def _places(dropout: jax.Array | None, settings: HighwaySettings) -> tuple[Any, Any]:
    """Returns the factors of the state before the product with U and of h', one of which is the dropout mask."""
    if dropout is None:
        return 1.0, 1.0
    return (1.0, dropout) if settings.form == "original" else (dropout, 1.0)


def _split(z: jax.Array, settings: HighwaySettings) -> dict[str, jax.Array]:
    return dict(zip(settings.order, jnp.split(z, len(settings.order), axis=-1), strict=True))


def _shifted(sequence: jax.Array, direction: Direction) -> jax.Array:
    """Returns the element before each step, [T, B, H]; zero before the first step."""
    first = jnp.zeros_like(sequence[:1])
    parts = [first, sequence[:-1]] if direction == "forward" else [sequence[1:], first]
    return jnp.concatenate(parts)


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
