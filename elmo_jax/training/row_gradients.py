"""The gradients of the softmax's rows, in parts of a fixed number of rows.

The shapes of a compiled program are fixed, and a batch of unusual text can touch many times as many rows as any other.
So there is room for the rows of usual batches, and a loop for further ones.

Shapes: G rows per part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax import lax

from elmo_jax.types import Tree

FURTHER_ROUNDS = "further_rounds"  # the name of a loop, by which the analysis of a compiled program recognises it

_State = TypeVar("_State")

Part = tuple[Any, Tree]  # the ids of rows, each once, with ids past the end that are to be ignored; their gradients


@dataclasses.dataclass(frozen=True)
class RowGradients:
    """The gradients of the rows that a device updates, averaged over all devices, in parts of G rows."""

    # the ids [G] and gradients [G, ...] of the first part, which has all rows of usual batches; or None and the
    # gradients of all rows
    first: Part
    # computes a further part from its number; it exchanges rows, so all devices must call it together
    part: Callable[[jax.Array], Part] | None = None
    parts: jax.Array | int = 1  # the number of parts, the same on all devices

    def fold(self, body: Callable[[Part, _State], _State], state: _State) -> _State:
        """Applies `body` to every part and the state, in order, and returns the last state."""
        state, part = body(self.first, state), self.part
        if part is None:
            return state
        return further_rounds(self.parts, lambda number, state: body(part(number), state), state)


def further_rounds(number: Any, body: Callable[[Any, _State], _State], state: _State) -> _State:
    """Runs the rounds from 1 to before `number`, which usual texts do not need."""
    with jax.named_scope(FURTHER_ROUNDS):
        return lax.while_loop(lambda c: c[0] < number, lambda c: (c[0] + 1, body(c[0], c[1])), (1, state))[1]
