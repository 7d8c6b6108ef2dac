"""Interleaved highway LSTM layers (He et al. 2017; Zhang et al. 2016), the recurrent part of the SRL model.

Shapes: L layers, T steps, B rows, I input, H units.

Layer 0 runs forward, layer 1 backward over the output of layer 0, and so on; directions are never concatenated. With
the input x, and the state h, c of the step before in the layer's own direction:

    i, f, o, r = sigmoid(W x + U h + b)      j = tanh(W_j x + U_j h + b_j)      k = W_k x + b_k
    c' = i * j + f * c                       h' = r * (o * tanh(c')) + (1 - r) * k

The recurrence carries h' after the highway mix. Two programs have this layer, and differ:

- "original" (deep_srl): blocks in the order i, f, o, r, j, k; 1 is added to the forget gate at run time; dropout acts
  on h' itself, so that both the next step and the next layer see the dropped value.
- "allennlp": blocks in the order i, f, j, o, r, k; the forget gate's bias starts at 1; dropout acts only on the state
  that is fed back.

The written backward pass keeps the gates and makes the gradient of U one product after the reverse scan, where
autodiff adds up a matrix of U's size at every step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.tasks.layers.initial_values import block_orthogonal
from elmo_jax.tasks.layers.variational import variational_mask
from elmo_jax.types import Tree

FORGET_BIAS = 1.0

Form = Literal["original", "allennlp"]
Bias = Literal["all", "gates"]
Direction = Literal["forward", "backward"]

ORDERS = {"original": "iforj", "allennlp": "ifjor"}  # of the blocks that see the state; k stands behind them


class State(NamedTuple):
    """What a layer carries from step to step."""

    cell: jax.Array  # [B, H]
    hidden: jax.Array  # [B, H]


@dataclasses.dataclass(frozen=True)
class HighwaySettings:
    """What the program of a layer is built from, beside the arrays.

    Attributes:
      form: whose layer it is; see the module's docstring.
      highway: "gated" as above, or "none" for a plain LSTM without the blocks r and k.
      backward_pass: "written" out, or left to JAX's "autodiff". The gradients are the same up to rounding.
    """

    form: Form = "original"
    highway: Literal["gated", "none"] = "gated"
    backward_pass: Literal["written", "autodiff"] = "written"

    @property
    def order(self) -> str:
        """The blocks that see the state, a letter each, in the order of their columns."""
        order = ORDERS[self.form]
        return order if self.highway == "gated" else order.replace("r", "")

    @property
    def carries_input(self) -> bool:
        """Whether there is a block k, the projected input that bypasses the LSTM."""
        return self.highway == "gated"


def highway_stack(
    layers: Sequence[Tree],
    inputs: jax.Array,
    mask: jax.Array,
    settings: HighwaySettings,
    dropout: jax.Array | None = None,
) -> tuple[jax.Array, list[State]]:
    """Runs layers in alternating directions, the first one forward.

    Args:
      layers: L parameter trees; see `highway_layer`.
      inputs: [T, B, I].
      mask: [T, B], true on words; rows are padded at their end.
      settings: of all layers.
      dropout: [L, B, H], masks that are scaled already; None for no dropout.

    Returns:
      Outputs [T, B, H], zero at padding, and each layer's state after the last step in its own direction.
    """
    states = []
    for number, params in enumerate(layers):
        direction: Direction = "backward" if number % 2 else "forward"
        scale = None if dropout is None else dropout[number]
        inputs, state = highway_layer(params, inputs, mask, settings, direction, scale)
        states.append(state)
    return inputs, states


def highway_layer(
    params: Tree,
    inputs: jax.Array,
    mask: jax.Array,
    settings: HighwaySettings,
    direction: Direction = "forward",
    dropout: jax.Array | None = None,
) -> tuple[jax.Array, State]:
    """Runs one layer; a backward layer starts at each row's own last word.

    Args:
      params: `kernel` [I, 6H], `recurrent` [H, 5H] and `bias`, [6H] or, without one for k, [5H]; without a highway
        [I, 4H], [H, 4H] and [4H].
      inputs: [T, B, I].
      mask: [T, B], true on words; rows are padded at their end.
      settings: of the layer.
      direction: in which the steps are taken.
      dropout: [B, H], a mask that is scaled already; None for no dropout.

    Returns:
      Outputs [T, B, H], zero at padding, and the state after the last step.
    """
    blocks = params["recurrent"].shape[1]
    bias = params["bias"]
    read = jnp.matmul(inputs, params["kernel"], precision=lax.Precision.HIGHEST)  # [T, B, 6H]
    read = read + jnp.pad(bias, (0, read.shape[-1] - bias.shape[0]))
    carried = read[..., blocks:] if settings.carries_input else None  # [T, B, H]
    real = mask[..., None].astype(read.dtype)  # [T, B, 1]
    run = _run_written if settings.backward_pass == "written" else _run
    return run(read[..., :blocks], carried, params["recurrent"], real, dropout, settings, direction)


def _run(
    read: jax.Array,
    carried: jax.Array | None,
    recurrent: jax.Array,
    real: jax.Array,
    dropout: jax.Array | None,
    settings: HighwaySettings,
    direction: Direction,
) -> tuple[jax.Array, State]:
    return _run_forward(read, carried, recurrent, real, dropout, settings, direction)[0]


def _run_forward(
    read: jax.Array,
    carried: jax.Array | None,
    recurrent: jax.Array,
    real: jax.Array,
    dropout: jax.Array | None,
    settings: HighwaySettings,
    direction: Direction,
) -> Any:
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
    last, (states, gates) = lax.scan(step, State(zero, zero), (read, carried, real), reverse=direction == "backward")
    return (states.hidden * real, last), (carried, recurrent, real, dropout, states, gates)


def _run_backward(settings: HighwaySettings, direction: Direction, residuals: Any, gradients: Any) -> Any:
    carried, recurrent, real, dropout, states, gates = residuals
    d_outputs, d_last = gradients
    fed, emitted = _places(dropout, settings)
    before = State(*(_shifted(sequence, direction) for sequence in states))

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
    _, (d_read, d_carried) = lax.scan(step, State(*d_last), at, reverse=direction == "forward")
    d_recurrent = jnp.einsum("tbh,tbz->hz", before.hidden * fed, d_read, precision=lax.Precision.HIGHEST)
    return d_read, d_carried, d_recurrent, None, None


_run_written = partial(jax.custom_vjp, nondiff_argnums=(5, 6))(_run)
_run_written.defvjp(_run_forward, _run_backward)


def _places(dropout: jax.Array | None, settings: HighwaySettings) -> tuple[Any, Any]:
    """What the state is multiplied with before U, and what h' is multiplied with."""
    if dropout is None:
        return 1.0, 1.0
    return (1.0, dropout) if settings.form == "original" else (dropout, 1.0)


def _split(z: jax.Array, settings: HighwaySettings) -> dict[str, jax.Array]:
    """The blocks of `z` by their letters."""
    return dict(zip(settings.order, jnp.split(z, len(settings.order), axis=-1), strict=True))


def _shifted(sequence: jax.Array, direction: Direction) -> jax.Array:
    """What stood before each step, [T, B, H]; zero before the first one."""
    first = jnp.zeros_like(sequence[:1])
    parts = [first, sequence[:-1]] if direction == "forward" else [sequence[1:], first]
    return jnp.concatenate(parts)


class HighwayLayer(nn.Module):
    """The parameters of one layer and their initial values; a thin shell around `highway_layer`.

    Every block of `kernel` and `recurrent` starts orthogonal.

    Attributes:
      inputs: I, the size of the layer's input.
      units: H.
      settings: of the layer.
      bias: "all" for one bias on each block, "gates" for none on k, as AllenNLP's ELMo configs.
    """

    inputs: int
    units: int
    settings: HighwaySettings
    bias: Bias = "all"

    @nn.compact
    def __call__(self) -> Tree:
        """The parameters; see `highway_layer`."""
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
    """A stack of highway LSTM layers in alternating directions.

    Attributes:
      layers: L; the paper has 8.
      units: H; the paper has 300.
      settings: of all layers.
      bias: see `HighwayLayer`.
      dropout: rate of the recurrent dropout, one mask per layer and row; needs a `dropout` key when not deterministic.
    """

    layers: int = 8
    units: int = 300
    settings: HighwaySettings = HighwaySettings()
    bias: Bias = "all"
    dropout: float = 0.1

    @nn.compact
    def __call__(
        self,
        inputs: jax.Array,
        mask: jax.Array,
        *,
        deterministic: bool = True,
        dropout_masks: jax.Array | None = None,
    ) -> jax.Array:
        """Runs all layers.

        Args:
          inputs: [B, T, I].
          mask: [B, T], true on words; rows are padded at their end.
          deterministic: whether nothing is dropped.
          dropout_masks: [L, B, H], scaled already, used in place of drawn ones.

        Returns:
          [B, T, H], zero at padding.
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
