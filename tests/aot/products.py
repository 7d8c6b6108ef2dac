"""Counts the operations of the matrix products in a compiled program exactly, loops as often as they run."""

from __future__ import annotations

import math
import re

import numpy as np

from elmo_jax.aot.cost import Assume, once, runs, with_fused
from elmo_jax.aot.hlo import Computation, HloModule, Instruction

# The number of bf16 products that make up a float32 product, by the precision that is requested.
PASSES = {"highest": 6, "high": 3}


def products(program: HloModule, assume: Assume = once) -> tuple[float, float]:
    """Returns the operations of all `dot`s and `convolution`s, and those of the bf16 products that they take."""
    flops = of_bf16 = 0.0
    for where, instruction, times, _ in runs(program, program.entry, assume):
        for inner, fused in with_fused(program, where, instruction):
            if fused.opcode in ("dot", "convolution"):
                operations = times * product_flops(inner, fused)
                flops += operations
                of_bf16 += operations * bf16_passes(inner, fused)
    return flops, of_bf16


def product_flops(where: Computation, product: Instruction) -> int:
    """Returns the operations of a `dot` or a `convolution`; a multiplication and an addition count as two."""
    left, right = (operand.arrays[0] for operand in where.inputs(product)[:2])
    out = product.arrays[0]
    if product.opcode == "dot":
        axes = re.search(r"lhs_contracting_dims=\{([^}]*)\}", product.attributes)
        contracted = (left.dims[int(axis)] for axis in re.findall(r"\d+", axes[1] if axes else ""))
        return 2 * math.prod(out.dims) * math.prod(contracted)
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", product.attributes)
    if labels is None:
        raise ValueError(f"{product.name}: a convolution without dim_labels")
    inputs, kernel, outputs = labels.groups()
    groups = re.search(r"\bbatch_group_count=(\d+)", product.attributes)
    batch = left.dims[inputs.index("b")] // (int(groups[1]) if groups else 1)
    count = batch * right.dims[kernel.index("i")] * right.dims[kernel.index("o")]
    for axis in sorted(label for label in inputs if label.isdigit()):
        count *= _pairs(product, int(axis), left.dims[inputs.index(axis)], out.dims[outputs.index(axis)])
    return 2 * count


def _pairs(convolution: Instruction, axis: int, length: int, outputs: int) -> int:
    """Returns the number of pairs of an output and a window place that read the input, not padding or dilation."""
    window = re.search(r"window=\{([^}]*)\}", convolution.attributes)
    given = dict(part.split("=") for part in window[1].split()) if window else {}

    def value(key: str, default: int) -> int:
        return int(given[key].split("x")[axis].split("_")[0]) if key in given else default

    dilation = value("lhs_dilate", 1)
    positions = np.arange(value("size", 1)) * value("rhs_dilate", 1) - value("pad", 0)
    at = np.arange(outputs)[:, None] * value("stride", 1) + positions
    return int(((at >= 0) & (at <= (length - 1) * dilation) & (at % dilation == 0)).sum())


def bf16_passes(where: Computation, product: Instruction) -> int:
    """Returns the number of bf16 products that a product takes, which is 1 unless both operands are float32."""
    if {operand.arrays[0].dtype for operand in where.inputs(product)[:2]} != {"f32"}:
        return 1
    actual = re.search(r"operand_precision=\{(\w+)", product.attributes)
    return PASSES.get(actual[1], 1) if actual else 1
