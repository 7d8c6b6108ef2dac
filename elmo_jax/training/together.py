"""What the processes of a run tell each other while they train. Every process calls each of these, in the same order.

Shapes: P processes.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, PartitionSpec

from elmo_jax.training.mesh import EVERYWHERE, shardings, to_devices


def is_first() -> bool:
    """Whether this is process 0, which alone writes and speaks."""
    return jax.process_index() == 0


def of_first(value: int) -> int:
    """Process 0's value, on all of them; they wait for it."""
    if jax.process_count() == 1:
        return value
    with jax.transfer_guard("allow"):
        return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def of_each(values: Mapping[str, float]) -> dict[str, list[float]]:
    """The values of every process, [P] for each name."""
    if jax.process_count() == 1:
        return {name: [value] for name, value in values.items()}
    mine = np.array(list(values.values()), np.float64).view(np.uint32)  # as bytes: float64 would be rounded
    with jax.transfer_guard("allow"):
        rows = multihost_utils.process_allgather(mine).view(np.float64)  # [P, names]
    return {name: rows[:, column].tolist() for column, name in enumerate(values)}


class StopAgreement:
    """After which step all processes stop, where a signal has reached one of them.

    A process that stopped by itself would leave the others waiting. So with every step goes a maximum over the signals
    received, one number, that nobody waits for: it is fetched with the figures of its step, one step late.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._largest = jax.jit(jnp.max, out_shardings=shardings(EVERYWHERE, mesh))

    def announce(self, received: signal.Signals | None) -> jax.Array | int:
        """The signal that a process has received by this step, or 0; to be fetched later."""
        if jax.process_count() == 1:
            return received or 0
        mine = np.full(len(self._mesh.local_devices), received or 0, np.int32)
        return self._largest(to_devices(mine, PartitionSpec(self._mesh.axis_names), self._mesh))
