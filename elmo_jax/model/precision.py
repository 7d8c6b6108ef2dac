"""Matrix products at a stated precision.

float32 products are pinned to full precision, since accelerators round their operands by default; bfloat16 products
round the operands and sum in float32. Everything between products (gates, states, normalisers, updates) is float32 in
both; the LSTM's backward pass reads gates that were rounded like operands.
"""

from __future__ import annotations

import enum

import jax
import jax.numpy as jnp
from jax import lax


class Precision(enum.Enum):
    """What the operands of matrix products are rounded to."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"

    def operand(self, array: jax.Array) -> jax.Array:
        """`array` as an operand of products; do it outside a loop for what the loop does not change."""
        return array.astype(jnp.bfloat16) if self is Precision.BFLOAT16 else array

    def product(self, a: jax.Array, b: jax.Array, contract: tuple[int, int] = (-1, 0)) -> jax.Array:
        """Contracts axis `contract[0]` of `a` with axis `contract[1]` of `b`, summed in float32.

        The remaining axes of `a` come first, then those of `b`: the default is `a @ b` for a matrix `b`.
        """
        axes = ((contract[0] % a.ndim,), (contract[1] % b.ndim,))
        return lax.dot_general(
            self.operand(a),
            self.operand(b),
            (axes, ((), ())),
            precision=lax.Precision.HIGHEST if self is Precision.FLOAT32 else lax.Precision.DEFAULT,
            preferred_element_type=jnp.float32,
        )
