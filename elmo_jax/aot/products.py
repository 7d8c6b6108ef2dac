"""Counts the operations of the matrix products in a compiled program exactly."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np

from elmo_jax.aot.hlo import Computation, Instruction

# The number of bf16 products that make up a float32 product, by the precision that is requested.
PASSES = {"highest": 6, "high": 3}


def product_flops(where: Computation, product: Instruction) -> int:
    """Returns the operations of a `dot` or a `convolution`; a multiplication and an addition count as two."""
    left, right = (operand.arrays[0] for operand in where.inputs(product)[:2])
    out = product.arrays[0]
    if product.opcode == "dot":
        axes = re.search(r"lhs_contracting_dims=\{([^}]*)\}", product.attributes)
        return 2 * out.size * math.prod(left.dims[int(axis)] for axis in re.findall(r"\d+", axes[1] if axes else ""))
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", product.attributes)
    if labels is None:
        raise ValueError(f"{product.name}: a convolution without dim_labels")
    inputs, kernel, outputs = labels.groups()
    groups = int(_number(product, "batch_group_count"))
    count = left.dims[inputs.index("b")] // groups * right.dims[kernel.index("i")] * right.dims[kernel.index("o")]
    for axis, window in _windows(product, sum(label.isdigit() for label in inputs)).items():
        label = str(axis)
        count *= window.pairs(left.dims[inputs.index(label)], out.dims[outputs.index(label)])
    return 2 * count


def _number(instruction: Instruction, key: str) -> int:
    found = re.search(rf"\b{key}=(\d+)", instruction.attributes)
    return int(found[1]) if found else 1


@dataclasses.dataclass(frozen=True)
class _Window:
    """The window of a convolution along one axis."""

    size: int = 1
    stride: int = 1
    low: int = 0  # the number of zeros before the input
    left_dilation: int = 1
    right_dilation: int = 1

    def pairs(self, length: int, outputs: int) -> int:
        """Returns the number of pairs of an output and a window place that read the input, not padding or dilation."""
        at = np.arange(outputs)[:, None] * self.stride - self.low + np.arange(self.size) * self.right_dilation
        inside = (at >= 0) & (at <= (length - 1) * self.left_dilation) & (at % self.left_dilation == 0)
        return int(inside.sum())


def _windows(product: Instruction, axes: int) -> dict[int, _Window]:
    found = re.search(r"window=\{([^}]*)\}", product.attributes)
    given = dict(part.split("=") for part in found[1].split()) if found else {}

    def values(key: str) -> list[int]:
        return [int(re.split("_", part)[0]) for part in given[key].split("x")] if key in given else []

    columns = {
        "size": values("size"),
        "stride": values("stride"),
        "low": values("pad"),
        "left_dilation": values("lhs_dilate"),
        "right_dilation": values("rhs_dilate"),
    }
    return {axis: _Window(**{key: column[axis] for key, column in columns.items() if column}) for axis in range(axes)}


def bf16_passes(where: Computation, product: Instruction) -> int:
    """Returns the number of bf16 products that a product takes, which is 1 unless both operands are float32."""
    if {operand.arrays[0].dtype for operand in where.inputs(product)[:2]} != {"f32"}:
        return 1
    found = re.search(r"operand_precision=\{(\w+)", product.attributes)
    return PASSES.get(found[1], 1) if found else 1
