"""The mesh of devices, and how arrays are placed on it.

The mesh has two axes: the groups of at most 8 adjacent devices, and the devices of a group. An array is replicated
(`REPLICATED`), or it is divided along an axis (`ROWS` for the first axis) over all devices (`AXIS`) or over
those of every group (`WITHIN`).
"""

import math
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from elmo_jax.errors import UserError

ACROSS, WITHIN = AXIS = ("groups", "devices")
GROUP = 8  # the most devices of a group, as many as a host of GPUs or of TPUs v5e often has
REPLICATED = PartitionSpec()
ROWS = PartitionSpec(AXIS)
_forked = False  # whether this process was forked from one in which JAX had been used


def is_in_use() -> bool:
    """Returns whether JAX has opened its devices."""
    number = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
    try:
        jax.config.update("jax_num_cpu_devices", number + 1)  # which JAX refuses from then on
        jax.config.update("jax_num_cpu_devices", number)
    except RuntimeError:
        return True
    return False


def _note_fork() -> None:
    global _forked
    _forked = is_in_use()


os.register_at_fork(after_in_child=_note_fork)


def check_not_forked() -> None:
    """Raises `UserError` in a process that was forked after JAX was used: it lacks JAX's threads, and would hang."""
    if _forked:
        raise UserError(
            "this process was forked after JAX had been used, and JAX cannot compute in such a process; compute only"
            " in the forked processes (models may be loaded before the fork), or start them with the method 'spawn'"
        )


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Makes a mesh of the given or of all devices, in which those of a process are adjacent."""
    check_not_forked()
    devices = sorted(devices or jax.devices(), key=lambda device: (device.process_index, device.id))
    group = len(devices) if len(devices) <= GROUP else math.gcd(len(devices), GROUP)
    return Mesh(np.asarray(devices).reshape(-1, group), AXIS, axis_types=(AxisType.Auto,) * 2)


def check_rows(batch_size: int, mesh: Mesh, groups: int = 1) -> None:
    """Raises `UserError` if the rows of a batch cannot be divided equally over the devices and their groups."""
    parts = mesh.size * groups
    if batch_size % parts:
        near = max(1, round(batch_size / parts)) * parts
        times = f" × {groups} groups (config.train.accumulate)" if groups > 1 else ""
        problem = f"{batch_size} rows cannot be divided over {mesh.size} devices{times}"
        raise UserError(f"config.train.batch_size: {problem}; take a multiple of {parts}, for example {near}")


def local_rows(rows: int, mesh: Mesh) -> range:
    """Returns the rows of the global batch that the devices of this process hold."""
    share = rows // mesh.size  # the rows are adjacent, since the devices of a process are adjacent in the mesh
    here = jax.process_index()
    positions = [position for position, device in enumerate(mesh.devices.flat) if device.process_index == here]
    return range(positions[0] * share, (positions[-1] + 1) * share)


def named_shardings(specs: Any, mesh: Mesh) -> Any:
    """Returns a tree of partition specs as a tree of shardings over the mesh."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, PartitionSpec))


def to_devices(arrays: Any, specs: Any, mesh: Mesh) -> Any:
    """Makes global arrays from the parts of this process's devices; of a replicated array, from all of it."""
    with jax.transfer_guard("allow"):  # the training loop disallows implicit transfers
        return jax.tree.map(jax.make_array_from_process_local_data, named_shardings(specs, mesh), arrays)


def distribute(arrays: Any, specs: Any, mesh: Mesh) -> Any:
    """Makes global arrays from arrays that every process holds in full."""

    def one(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

    return jax.tree.map(one, arrays, named_shardings(specs, mesh))


def gather(tree: Any) -> Any:
    """Returns the full arrays of a tree on every host, divided or not. Every process must call this function."""

    def one(array: jax.Array) -> np.ndarray:
        if array.is_fully_addressable or array.is_fully_replicated:  # without a further copy on the devices
            return np.asarray(jax.device_get(array))
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))

    return jax.tree.map(one, tree)


def local_part(array: jax.Array, axis: int = 0) -> np.ndarray:
    """Returns this process's part of an array that is divided along `axis`."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[axis].start or 0)
    return np.concatenate([jax.device_get(shard.data) for shard in shards], axis)
