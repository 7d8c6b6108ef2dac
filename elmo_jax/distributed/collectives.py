"""What the processes of a run tell each other. Every process calls each of these, in the same order.

Shapes: P processes.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, PartitionSpec

from elmo_jax.distributed.mesh import REPLICATED, make_mesh, named_shardings, to_devices
from elmo_jax.errors import UserError


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


def meet() -> None:
    """A first exchange between all devices.

    Gloo, between CPUs, wants all processes to come to it within 30 seconds: so it is made where they are together, and
    not where one has compiled its step sooner than another.
    """
    mesh = make_mesh()
    ones = to_devices(np.ones(len(mesh.local_devices), np.int32), PartitionSpec(mesh.axis_names), mesh)
    jax.jit(jnp.sum, out_shardings=named_shardings(REPLICATED, mesh))(ones).block_until_ready()


@contextlib.contextmanager
def fails_together() -> Iterator[None]:
    """A user's mistake that one process finds in it ends all of them, with the same status.

    What stands in it must not exchange anything with other processes: those that fail would leave the others waiting.

    Raises:
      UserError: this process's own, or one that names a process that has one.
    """
    mistake: UserError | None = None
    try:
        yield
    except UserError as error:
        mistake = error
    failed = of_each({"failed": float(mistake is not None)})["failed"]
    if mistake is not None:
        raise mistake
    if any(failed):
        raise UserError(f"process {failed.index(1.0)} has found a mistake; its own log says which")


class StopAgreement:
    """After which step all processes stop, where a signal has reached one of them.

    A process that stopped by itself would leave the others waiting. So with every step goes a maximum over the signals
    received, one number, that nobody waits for: it is fetched with the figures of its step, one step late.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._largest = jax.jit(jnp.max, out_shardings=named_shardings(REPLICATED, mesh))

    def announce(self, received: signal.Signals | None) -> jax.Array | int:
        """The signal that a process has received by this step, or 0; to be fetched later."""
        if jax.process_count() == 1:
            return received or 0
        mine = np.full(len(self._mesh.local_devices), received or 0, np.int32)
        return self._largest(to_devices(mine, PartitionSpec(self._mesh.axis_names), self._mesh))
