"""How the processes of a run connect to process 0, which tells all where it listens through JAX."""

from __future__ import annotations

import json
import secrets
import socket
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec

from elmo_jax.errors import PeerLost
from elmo_jax.training.mesh import EVERYWHERE, make_mesh, shardings, to_devices

MEET_SECONDS = 60.0  # for all to connect to process 0
_ANSWER_SECONDS = 5.0  # for one of them to say who it is
_ADDRESS_BYTES = 1024
_EVERY_PORT = "the hosts of a run must reach each other on every port"

Message = dict[str, Any]


def meet(name: str, coordinator: str | None = None) -> dict[socket.socket, str]:
    """Connects the processes; all call it at the same time, once JAX knows them all.

    Args:
      name: of this process, for the others to call it by.
      coordinator: a name of process 0's host that the others can reach it by, where one is known.

    Returns:
      Connections, and the names of the processes at their other ends: process 0 has one to each of the others, they
      have one to process 0.

    Raises:
      PeerLost: not all of them came within `MEET_SECONDS`.
    """
    _exchange()
    return _call(name) if jax.process_index() else _listen(name, coordinator)


def line(message: Message) -> bytes:
    """A message as it is sent."""
    return json.dumps(message).encode() + b"\n"


def _exchange() -> None:
    """A first exchange between all devices.

    Gloo, between CPUs, wants all processes to come to it within 30 seconds: so it is made where they are together, and
    not where one has compiled its step sooner than another.
    """
    mesh = make_mesh()
    ones = to_devices(np.ones(len(mesh.local_devices), np.int32), PartitionSpec(mesh.axis_names), mesh)
    jax.jit(jnp.sum, out_shardings=shardings(EVERYWHERE, mesh))(ones).block_until_ready()


def _listen(name: str, coordinator: str | None) -> dict[socket.socket, str]:
    """Process 0: takes the calls of the others."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    found: dict[socket.socket, str] = {}
    with socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=jax.process_count()) as server:
        token = secrets.token_hex(16)
        hosts = [host for host in (coordinator, _own_address(), socket.gethostname()) if host]
        _from_process_0({"hosts": hosts, "port": server.getsockname()[1], "token": token, "name": name})
        missing, deadline = set(range(1, jax.process_count())), time.monotonic() + MEET_SECONDS
        while missing:
            if time.monotonic() > deadline:
                who = ", ".join(map(str, sorted(missing)))
                raise PeerLost(f"process {who} did not call process 0 within {MEET_SECONDS:.0f} seconds; {_EVERY_PORT}")
            try:
                server.settimeout(1)
                connection, _ = server.accept()
                connection.settimeout(_ANSWER_SECONDS)
                hello = _first_message(connection)
            except OSError:  # nobody, or not one of ours
                continue
            if secrets.compare_digest(str(hello.get("token")), token) and hello.get("index") in missing:
                missing.remove(hello["index"])
                found[connection] = hello["name"]
    for connection in found:
        connection.sendall(line({"kind": "welcome"}))
    return found


def _call(name: str) -> dict[socket.socket, str]:
    """Any other process: calls process 0."""
    where = _from_process_0(None)
    for host in where["hosts"]:
        try:
            connection = socket.create_connection((host, where["port"]), timeout=_ANSWER_SECONDS)
            connection.sendall(line({"token": where["token"], "index": jax.process_index(), "name": name}))
            connection.settimeout(MEET_SECONDS)
            _first_message(connection)  # its welcome
        except OSError:
            continue  # another of its names may be the one that is known here
        return {connection: where["name"]}
    at = " or ".join(where["hosts"])
    raise PeerLost(f"{name} cannot reach {where['name']} at port {where['port']} of {at}; {_EVERY_PORT}")


def _from_process_0(value: Message | None) -> Message:
    """What process 0 gives, on every process."""
    text = line(value).ljust(_ADDRESS_BYTES) if value is not None else bytes(_ADDRESS_BYTES)
    assert len(text) == _ADDRESS_BYTES
    given = multihost_utils.broadcast_one_to_all(np.frombuffer(text, np.uint8).astype(np.int32))
    found: Message = json.loads(np.asarray(given).astype(np.uint8).tobytes())
    return found


def _own_address() -> str | None:
    """The address this host would send from; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address of RFC 5737 that is nowhere
            return str(probe.getsockname()[0])
        except OSError:
            return None


def _first_message(connection: socket.socket) -> Message:
    """The first line that comes. Raises `OSError` for anything else."""
    received = b""
    while not received.endswith(b"\n"):
        more = connection.recv(1)  # what follows is for the watch
        if not more or len(received) > _ADDRESS_BYTES:
            raise OSError("no message")
        received += more
    try:
        message: Message = json.loads(received)
    except ValueError as error:
        raise OSError("no message") from error
    if not isinstance(message, dict):
        raise OSError("no message")
    return message
