"""Implements the dropout of the task models: plain, or with one mask per row for all time steps.

Shapes: B rows, T steps, D features per step.
"""

from __future__ import annotations

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from elmo_jax.model.dropout import bernoulli, dropped

DropoutKind = Literal["plain", "variational"]
"""Whether each step of a row draws its own mask ("plain") or all steps share one ("variational")."""


class Dropout(nn.Module):
    """Sets units to zero and divides the others by the fraction that is kept (inverted scaling).

    Attributes:
      rate: the fraction of the units that is dropped.
      kind: "variational" draws one mask per row and feature, the same at every time step (Gal and Ghahramani 2016).
    """

    rate: float
    kind: DropoutKind = "plain"

    @nn.compact
    def __call__(self, inputs: jax.Array, *, deterministic: bool) -> jax.Array:
        """Drops units of [B, T, D] or, with the kind "plain", of inputs of any shape.

        Args:
          inputs: the units.
          deterministic: whether `inputs` are returned unchanged; otherwise a `dropout` key is needed.

        Raises:
          ValueError: the kind is "variational" and the inputs have no axis of steps.
        """
        if self.kind == "variational" and inputs.ndim != 3:
            raise ValueError(f"variational dropout needs inputs [B, T, D], got {inputs.shape}")
        if deterministic or not self.rate:
            return inputs
        return dropped(inputs, self.rate, self.make_rng("dropout"), (1,) if self.kind == "variational" else ())


def variational_mask(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """Returns a float32 mask of zeros and 1 / (1 - rate), for recurrent layers that apply it at every step.

    Args:
      key: the random key.
      rate: the fraction of the units that is dropped, at least 0 and below 1.
      shape: the shape of the mask, such as [B, D].
    """
    return jnp.where(bernoulli(key, 1 - rate, shape), jnp.float32(1 / (1 - rate)), 0.0)
