"""Types of arrays under `jax.shard_map`, which tell along which axes of the mesh the devices have different values."""

from typing import Any

import jax
from jax import lax


def varying_like(tree: Any, like: Any) -> Any:
    """Returns the arrays of a tree with the type of arrays that vary along the same axes as others.

    What a loop begins with must have the type of what it computes. Outside `shard_map`, and with `check_vma=False`,
    nothing varies, and the arrays are returned as they are.

    Args:
      tree: arrays, such as the zeros that a loop begins with.
      like: arrays from which the loop computes.
    """
    axes = frozenset().union(*map(_axes, jax.tree.leaves(like)))

    def one(leaf: jax.Array) -> jax.Array:
        missing = tuple(sorted(axes - _axes(leaf)))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(one, tree)


def _axes(leaf: jax.Array) -> frozenset[str]:
    kind: Any = jax.typeof(leaf)
    return frozenset(kind.manual_axis_type.varying)
