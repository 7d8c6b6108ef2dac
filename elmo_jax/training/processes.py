"""One command on many hosts: the processes of a run find each other.

On TPU pods, under Slurm, Open MPI and Kubernetes, JAX finds the peers by what the launcher left in the environment.
Anywhere else three flags say who they are. Without either, the process is alone and starts no coordinator.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from elmo_jax.errors import TRY_AGAIN, PeerLost, UserError, exit_status

if TYPE_CHECKING:  # JAX is not imported before the options are read
    from elmo_jax.training.peers import Peers

START_SECONDS = 300  # that the processes wait for each other at the start: hosts of a pod may come up minutes apart
VERDICT_SECONDS = 2  # for the watch to find that an error here is the loss of another process

_NOT_FOUND = "a launcher of many processes was found, but not the other processes"
_BY_HAND = "give --coordinator, --processes and --process, or --processes 1 for a process that works alone"


def add_process_flags(parser: argparse.ArgumentParser) -> None:
    """`--coordinator`, `--processes` and `--process`, for a command that runs on many hosts at once."""
    group = parser.add_argument_group(
        "many hosts",
        "Start the same command on every host. TPU pods, Slurm, Open MPI and Kubernetes are found without flags;"
        " elsewhere give all three.",
    )
    group.add_argument("--coordinator", metavar="HOST:PORT", help="host of process 0, and a free port there")
    group.add_argument("--processes", type=int, metavar="N", help="how many there are; 1: this one, whatever is found")
    group.add_argument("--process", type=int, metavar="I", help="which one this is, 0 to N - 1")


@contextlib.contextmanager
def connected(options: argparse.Namespace) -> Iterator[None]:
    """In it, the processes of the run are together: JAX has the devices of all, and they watch each other.

    A process that leaves it with an error ends all of them, with one status; one that comes to its end waits for the
    others. JAX must not be used before.

    Args:
      options: of a parser with `add_process_flags`.

    Raises:
      UserError: flags that do not go together; a launcher that cannot be understood.
    """
    peers = _join(options)
    if peers is None:
        yield
        return
    try:
        yield
    except BaseException as error:  # all of them end: a bug in one is no reason for the others to wait
        _end_all(peers, error)
    peers.finish()
    import jax

    jax.distributed.shutdown()


def _end_all(peers: Peers, error: BaseException) -> NoReturn:
    """Tells of an error, here and on all other processes, and ends them."""
    from elmo_jax.training.peers import tell

    if not isinstance(error, KeyboardInterrupt):
        time.sleep(VERDICT_SECONDS)  # the loss of a peer makes errors here too; the watch then ends this process
    text = f"{peers.name}: {str(error) or 'interrupted'}"
    if exit_status(error) == 1:
        traceback.print_exception(error)
        text = f"{peers.name} failed: {type(error).__name__}: {_one_line(error)[:300]} (its own log has the traceback)"
    tell(text)
    peers.end(exit_status(error), text)


def _join(options: argparse.Namespace) -> Peers | None:
    """The other processes, if there are any."""
    try:
        if not _initialized(options):
            return None
        from elmo_jax.training.peers import Peers

        return Peers(options.coordinator and options.coordinator.rpartition(":")[0].strip("[]"))
    except PeerLost as error:  # at the process's own end JAX would wait for the others
        from elmo_jax.training.peers import end_process, tell

        tell(str(error))
        end_process(exit_status(error))


def _initialized(options: argparse.Namespace) -> bool:
    """Whether there are other processes; JAX has found them then."""
    coordinator, processes, process = options.coordinator, options.processes, options.process
    if processes == 1 and not process:
        return False
    given = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return _join_launched()
    if missing:
        raise UserError(f"--coordinator, --processes and --process go together; missing: {', '.join(missing)}")
    if not re.fullmatch(r"[^\s:]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", coordinator):
        raise UserError(f"--coordinator: expected HOST:PORT, got {coordinator!r}")
    if processes < 1:
        raise UserError(f"--processes: expected at least 1, got {processes}")
    if not 0 <= process < processes:
        raise UserError(f"--process: expected 0 to {processes - 1}, with --processes {processes}; got {process}")
    if process == 0:
        _check_port(int(coordinator.rpartition(":")[2]))
    _initialize(
        coordinator_address=coordinator,
        num_processes=processes,
        process_id=process,
        cluster_detection_method="deactivate",
    )
    return True


def _check_port(port: int) -> None:
    """Raises `PeerLost` where process 0 cannot listen; JAX may crash then. The run before may not be quite gone yet."""
    try:
        socket.create_server(("", port)).close()
    except (OSError, OverflowError) as error:
        raise PeerLost(f"--coordinator: port {port} of this host cannot be had: {_one_line(error)}") from None


def _join_launched() -> bool:
    """Joins the processes that a launcher started, if JAX finds that one did, and there is more than one."""
    environment = os.environ
    if environment.get("SLURM_NTASKS") == "1":
        return False
    in_indexed_job = "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment
    try:
        with warnings.catch_warnings(record=True) as warned:  # JAX's advice is for the indexed jobs of Kubernetes alone
            warnings.simplefilter("always")
            _initialize(local_device_ids=_devices_of_node(environment))
    except (UserError, PeerLost):
        raise
    except Exception as error:  # whatever the launcher's own client raises
        if "before any JAX calls" in str(error):  # called from a program that uses JAX already
            return False
        if "coordinator_address should be defined" not in str(error):
            raise UserError(f"{_NOT_FOUND} ({_one_line(error)}); {_BY_HAND}") from error
        if in_indexed_job:  # many pods, and each would train for itself
            advice = next((warning for warning in warned if "kubernetes" in str(warning.message)), error)
            raise UserError(f"{_NOT_FOUND} ({_one_line(advice)}); {_BY_HAND}") from None
        return False
    import jax

    return jax.process_count() > 1


def _devices_of_node(environment: Mapping[str, str]) -> list[int] | None:
    """All GPUs of the node for the only task of a Slurm node, which JAX would give its first one; else JAX's choice."""
    tasks = environment.get("SLURM_STEP_TASKS_PER_NODE", environment.get("SLURM_TASKS_PER_NODE", ""))
    gpus = environment.get("SLURM_GPUS_ON_NODE", "")
    if gpus.isdecimal() and all(re.fullmatch(r"1(\(x\d+\))?", part) for part in tasks.split(",")):
        return list(range(int(gpus)))
    return None


def _initialize(**arguments: Any) -> None:
    """`jax.distributed.initialize`, with its failures in one line."""
    import jax

    from elmo_jax.training.peers import end_process, tell

    by_flags = "coordinator_address" in arguments
    hint = "" if by_flags else "; if there is to be one alone, give --processes 1"

    def give_up() -> None:
        tell(f"the other processes did not come within {START_SECONDS} seconds{hint}")
        end_process(TRY_AGAIN)

    # JAX would take SIGTERM for itself, and aborts where it waits in vain: so it may wait for longer than we do
    jax.config.update("jax_enable_preemption_service", False)
    patience = threading.Timer(START_SECONDS, give_up)
    patience.daemon = True
    patience.start()
    try:
        jax.distributed.initialize(initialization_timeout=START_SECONDS + 60, **arguments)
    except jax.errors.JaxRuntimeError as error:
        raise PeerLost(f"the processes cannot come together: {_one_line(error)}") from None
    finally:
        patience.cancel()


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
