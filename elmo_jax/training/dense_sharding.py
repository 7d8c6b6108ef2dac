"""Divides the update of the large matrices, except for the softmax, over the devices of a group (`make_mesh`).

As in the first stage of ZeRO (Rajbhandari et al. 2020), a device receives the averaged gradient of some rows of a
matrix, keeps the optimizer's state of these rows alone, and computes their updates, which the devices of its group
exchange. The parameters themselves are on every device. All groups do the same: on a larger slice, XLA replaces a
reduce-scatter over all chips by an exchange of whole gradients (v5e:4x4, 8x8 and 16x16, but not 4x8).
"""

from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec

from elmo_jax.distributed.mesh import ACROSS, AXIS, REPLICATED, WITHIN
from elmo_jax.training.optimizer import square_sum
from elmo_jax.types import Tree

LEAST = 1 << 20  # numbers of a matrix that is divided; the updates of smaller ones take little time


def is_divided(leaf: Any, devices: int) -> bool:
    """Returns whether the update of a parameter, and the optimizer's arrays of its shape, are divided over a group."""
    return devices > 1 and leaf.ndim > 1 and leaf.size >= LEAST and leaf.shape[0] % devices == 0


def optimizer_specs(state: Any, devices: int) -> Any:
    """Returns a `PartitionSpec` for every array of the optimizer's state, in groups of `devices` devices."""
    return jax.tree.map(lambda leaf: PartitionSpec(WITHIN) if is_divided(leaf, devices) else REPLICATED, state)


def average(gradients: Tree, losses: jax.Array) -> tuple[Tree, jax.Array]:
    """Averages gradients and losses over the devices; of a gradient that is divided, a device gets its rows."""
    leaves, tree = jax.tree.flatten(gradients)
    whole, losses = lax.pmean(([leaf for leaf in leaves if not _is_divided(leaf)], losses), AXIS)
    of_group = [lax.psum_scatter(leaf, WITHIN, tiled=True) for leaf in leaves if _is_divided(leaf)]
    rows = iter(total / lax.axis_size(AXIS) for total in lax.psum(of_group, ACROSS))
    rest = iter(whole)
    return jax.tree.unflatten(tree, [next(rows if _is_divided(leaf) else rest) for leaf in leaves]), losses


def own_rows(params: Tree) -> Tree:
    """Returns the rows of the parameters that this device updates."""

    def part(leaf: jax.Array) -> jax.Array:
        rows = len(leaf) // lax.axis_size(WITHIN)
        return lax.dynamic_slice_in_dim(leaf, lax.axis_index(WITHIN) * rows, rows)

    return jax.tree.map(lambda leaf: part(leaf) if _is_divided(leaf) else leaf, params)


def all_rows(parts: Tree, params: Tree) -> Tree:
    """Returns whole arrays, which have the shapes of the parameters, from the rows on the devices of a group."""
    return jax.tree.map(
        lambda part, param: lax.all_gather(part, WITHIN, tiled=True) if _is_divided(param) else part, parts, params
    )


def total_square_sum(parts: Tree, params: Tree) -> jax.Array:
    """Returns the sum of squares of whole arrays, which have the shapes of the parameters, from this device's rows."""
    pairs = list(zip(jax.tree.leaves(parts), jax.tree.leaves(params), strict=True))
    divided = [part for part, param in pairs if _is_divided(param)]
    squares = square_sum([part for part, param in pairs if not _is_divided(param)])
    return squares + lax.psum(square_sum(divided), WITHIN) if divided else squares


def _is_divided(leaf: jax.Array) -> bool:
    return is_divided(leaf, lax.axis_size(WITHIN))
