"""One command on many hosts: the processes of a run find each other, and end together.

On TPU pods, under Slurm, Open MPI and Kubernetes, JAX finds the others by what the launcher left in the environment.
Anywhere else three options say who they are. Without either, the process is alone and starts no coordinator.

A process that dies, or that is stopped or out of reach for `HEARTBEAT_SECONDS`, is noticed by JAX's own heartbeat,
which aborts all others (status 134, SIGABRT, after JAX's account of it). Where the collectives find a closed connection
first, as Gloo does between CPUs, the process ends with status 75 and a line that says so. Either way the same launch
goes on from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from elmo_jax.errors import TRY_AGAIN, PeerLost, UserError, exit_status

START_SECONDS = 300  # how long the processes wait for each other at the start: hosts of a pod may come up minutes apart
HEARTBEAT_SECONDS = 40  # measured: all others have ended a few seconds before it is over (tools/heartbeat.py)

_NOT_FOUND = "a launcher of many processes was found, but not the other processes"
_BY_HAND = "give --coordinator, --processes and --process, or --processes 1 for a process that works alone"
# how the collectives of CPUs and GPUs, and JAX's coordination service, say that another process is gone
_LOST = re.compile(r"gloo|nccl|connection (closed|reset)|broken pipe|heartbeat|coordination service", re.IGNORECASE)


@contextlib.contextmanager
def connected(
    coordinator: str | None, processes: int | None, process: int | None, heartbeat: int | None = None
) -> Iterator[None]:
    """In it, the processes of the run are together: JAX has the devices of all of them.

    A process that leaves it with an error ends at once, since anything more would wait for the others; these end by the
    heartbeat. A process that comes to its end waits for the others. JAX must not be used before.

    Args:
      coordinator: `HOST:PORT` of process 0.
      processes: how many there are; 1: this process alone, whatever is found.
      process: which one this is.
      heartbeat: seconds without a sign of life after which a process is lost; `HEARTBEAT_SECONDS` unless given.

    Raises:
      UserError: arguments that do not go together; a launcher that cannot be understood.
      PeerLost: the others did not come.
    """
    if heartbeat is not None and not 5 <= heartbeat <= 3600:
        raise UserError(f"--heartbeat: expected 5 to 3600 seconds, got {heartbeat}")
    if not _find_others(coordinator, processes, process, heartbeat or HEARTBEAT_SECONDS):
        yield
        return
    try:
        from elmo_jax.distributed.collectives import meet

        meet()
        yield
    except BaseException as error:
        _leave(error)
    import jax

    jax.distributed.shutdown()


def _leave(error: BaseException) -> NoReturn:
    """Ends this process with the error's line, or with its traceback where it is a fault of the program."""
    import jax

    name = f"process {jax.process_index()} on {socket.gethostname()}"
    is_loss = isinstance(error, jax.errors.JaxRuntimeError | ValueError) and _LOST.search(str(error))
    if is_loss:
        reason = _one_line(error)[:200]
        error = PeerLost(f"another process is gone ({reason}); the same launch goes on from the last checkpoint")
    if exit_status(error) == 1:
        traceback.print_exception(error)
    live = "\n" if sys.stderr.isatty() else ""  # so that it does not run into a live line of the terminal
    print(f"{live}elmo-jax: {name}: {_one_line(error) or 'interrupted'}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(exit_status(error))


def _find_others(coordinator: str | None, processes: int | None, process: int | None, heartbeat: int) -> bool:
    """Whether there are other processes; JAX has found them then."""
    if processes == 1 and not process:
        return False
    given = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return _join_launched(heartbeat)
    if coordinator is None or processes is None or process is None:
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
        heartbeat,
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


def _join_launched(heartbeat: int) -> bool:
    """Joins the processes that a launcher started, if JAX finds that one did, and there is more than one."""
    environment = os.environ
    if environment.get("SLURM_NTASKS") == "1":
        return False
    in_indexed_job = "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment
    try:
        with warnings.catch_warnings(record=True) as warned:  # JAX's advice is for the indexed jobs of Kubernetes alone
            warnings.simplefilter("always")
            _initialize(heartbeat, local_device_ids=_devices_of_node(environment))
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


def _initialize(heartbeat: int, **arguments: Any) -> None:
    """`jax.distributed.initialize`, with its failures in one line."""
    import jax

    hint = "" if "coordinator_address" in arguments else "; if there is to be one alone, give --processes 1"

    def give_up() -> None:
        print(f"elmo-jax: the other processes did not come within {START_SECONDS} seconds{hint}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(TRY_AGAIN)

    # JAX would take SIGTERM for itself, and aborts where it waits in vain: so it may wait for longer than we do
    jax.config.update("jax_enable_preemption_service", False)
    patience = threading.Timer(START_SECONDS, give_up)
    patience.daemon = True
    patience.start()
    try:
        jax.distributed.initialize(
            initialization_timeout=START_SECONDS + 60, heartbeat_timeout_seconds=heartbeat, **arguments
        )
    except jax.errors.JaxRuntimeError as error:
        raise PeerLost(f"the processes cannot come together: {_one_line(error)}") from None
    finally:
        patience.cancel()


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
