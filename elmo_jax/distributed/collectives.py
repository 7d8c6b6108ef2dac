"""Exchanges values between the processes of a run.

Every process must call the functions that exchange values, and all processes must call them in the same order.

Shapes: P processes.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, PartitionSpec

from elmo_jax.distributed.initialize import EXPORT_SECONDS
from elmo_jax.distributed.mesh import REPLICATED, make_mesh, named_shardings, to_devices
from elmo_jax.errors import UserError


def is_primary() -> bool:
    """Returns whether this is process 0, the only one that writes shared files and prints."""
    return jax.process_index() == 0


def broadcast_from_primary(value: int) -> int:
    """Returns process 0's value (an int32) on every process; the others wait for it."""
    with jax.transfer_guard("allow"):
        return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def allgather(values: Mapping[str, float]) -> dict[str, list[float]]:
    """Returns the values of all processes, P numbers for each name."""
    if jax.process_count() == 1:
        return {name: [value] for name, value in values.items()}
    mine = np.array(list(values.values()), np.float64).view(np.uint32)  # JAX would round float64 to float32
    with jax.transfer_guard("allow"):
        rows = multihost_utils.process_allgather(mine).view(np.float64)  # [P, names]
    return {name: rows[:, column].tolist() for column, name in enumerate(values)}


def barrier() -> None:
    """Makes a first exchange between all devices, when all processes have just connected.

    Gloo, the collectives library of CPUs, fails unless all processes reach their first exchange within 30 seconds, and
    one process might compile its step much sooner than another.
    """
    mesh = make_mesh()
    ones = to_devices(np.ones(len(mesh.local_devices), np.int32), PartitionSpec(mesh.axis_names), mesh)
    jax.jit(jnp.sum, out_shardings=named_shardings(REPLICATED, mesh))(ones).block_until_ready()


def wait_for_all() -> None:
    """Returns once all processes have called it, so that what process 0 has written before is complete for all.

    The coordination service waits here, since exchanges between devices have time limits. If a process dies, its
    heartbeat ends all.
    """
    if jax.process_count() == 1:
        return
    import orbax.checkpoint as ocp  # which takes a while, and which most commands do not need

    ocp.multihost.get_barrier_sync_fn()(key="wait_for_all", timeout_ms=1000 * EXPORT_SECONDS)


@contextlib.contextmanager
def raise_on_all() -> Iterator[None]:
    """A context in which a `UserError` of one process is raised on all, on the others as one that names this process.

    The body must not exchange anything with other processes, which a process that fails would leave waiting.
    """
    mistake: UserError | None = None
    try:
        yield
    except UserError as error:
        mistake = error
    wait_for_all()  # since the body may take hours on one process, and minutes on another
    failed = allgather({"failed": float(mistake is not None)})["failed"]
    if mistake is not None:
        raise mistake
    if any(failed):
        raise UserError(f"process {failed.index(1.0)} has found a mistake; its own log says which")


def check_equal(digest: str, what: str) -> None:
    """Raises `UserError` on all processes unless they have the same hexadecimal digest (48 bits) of `what`."""
    digests = allgather({"digest": float(int(digest[:12], 16))})["digest"]  # a float64 has 53 bits
    for process, value in enumerate(digests):
        if value != digests[0]:
            raise UserError(f"process {process} has {what} that differ from those of process 0; give all the same")


class StepRequests(NamedTuple):
    """What a process requests for the next step boundary."""

    signal: int = 0  # to stop, because of the signal of this number
    save: int = 0  # 1 to save
    report: int = 0  # 1 to report


class RequestReducer:
    """Determines the step after which all processes stop, save or report because one of them requests it.

    A process that stopped by itself would leave the others waiting. So every step is accompanied by a maximum over the
    requests of all processes. No process waits for it: it is fetched with the metrics of its step, one step late.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._largest = jax.jit(functools.partial(jnp.max, axis=0), out_shardings=named_shardings(REPLICATED, mesh))

    def reduce(self, requests: StepRequests) -> jax.Array | StepRequests:
        if jax.process_count() == 1:
            return requests
        mine = np.tile(np.array(requests, np.int32), (len(self._mesh.local_devices), 1))
        return self._largest(to_devices(mine, PartitionSpec(self._mesh.axis_names), self._mesh))
