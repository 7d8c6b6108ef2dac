"""Connects the processes of one command on many hosts, and makes sure that they end together.

On TPU pods, under Slurm, Open MPI and Kubernetes, JAX finds the other processes through the launcher's environment
variables. Anywhere else three options describe them. Without either, the process is alone and starts no coordinator.

JAX's own heartbeat detects a process that dies, or that is suspended or unreachable for `HEARTBEAT_SECONDS`, and aborts
all others (status 134, SIGABRT, after JAX's own error messages). If an exchange or the barrier of a checkpoint meets
the loss first, the process ends with status 75 and one line. In either case the same launch resumes from the last
checkpoint.
"""

import contextlib
import os
import re
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

from elmo_jax.errors import TRY_AGAIN, PeerLost, UserError, exit_status, of_machine
from elmo_jax.interrupts import end_of_command, leave

START_SECONDS = 300  # how long the processes wait for each other at the start: hosts of a pod may come up minutes apart
EXPORT_SECONDS = 24 * 3600  # how long the other processes wait at the end, while process 0 may write a large export
HEARTBEAT_SECONDS = 40  # all other processes end a few seconds before this time is over (tests/manual/heartbeat.py)

_NOT_CONNECTED = "a launcher of many processes was found, but not the other processes"
_BY_HAND = "give --coordinator, --processes and --process, or --processes 1 for a process that works alone"
_is_alone = False  # whether the user has said so, with --processes 1
# How the collectives of CPUs and GPUs, and JAX's coordination service, report that another process is lost.
_LOST = re.compile(r"gloo|nccl|connection (closed|reset)|broken pipe|heartbeat|coordination service", re.IGNORECASE)


@contextlib.contextmanager
def connected(
    coordinator: str | None, processes: int | None, process: int | None, heartbeat: int | None = None
) -> Iterator[None]:
    """A context in which the processes of the run are connected, so that JAX sees the devices of all of them.

    A process that leaves the context with an error ends at once, since any further exchange would wait for the others;
    the heartbeat then ends these. A process that reaches the end of the context waits for the others. JAX must not be
    used before the context is entered. The arguments are those of the command (`cli.options.add_process_options`).

    Raises:
      UserError: the arguments are invalid or incomplete, or a launcher was detected but not its other processes.
      PeerLost: the other processes did not connect.
    """
    if not _find_others(coordinator, processes, process, heartbeat or HEARTBEAT_SECONDS):
        yield
        return
    try:
        from elmo_jax.distributed.collectives import barrier

        barrier()
        yield
    except BaseException as error:
        _leave(error)
    import jax

    jax.distributed.shutdown()


def check_connected() -> None:
    """Raises `UserError` if a launcher has started several processes, and this one is not connected to the others.

    Each of them would train a separate model in the same folder.
    """
    import jax

    if jax.distributed.is_initialized() or _is_alone:
        return
    numbers = {name: os.environ.get(name, "1") for name in ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")}
    if "SLURM_STEP_NODELIST" not in os.environ:  # in a batch script, and not started by srun: there is one process
        numbers.pop("SLURM_NTASKS")
    numbers["TPU_WORKER_HOSTNAMES"] = str(os.environ.get("TPU_WORKER_HOSTNAMES", "").count(",") + 1)
    if _in_indexed_job():
        numbers["JOB_COMPLETION_INDEX"] = "2"
    launched = next((name for name, number in numbers.items() if number not in ("", "0", "1")), None)
    if launched or jax.process_count() > 1:
        raise UserError(
            f"this is one of several processes ({launched or 'TPU'}) and not connected to the others; {_BY_HAND}; in a"
            " program, call jax.distributed.initialize() before JAX is used"
        )


def _in_indexed_job() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ and "JOB_COMPLETION_INDEX" in os.environ


def _leave(error: BaseException) -> NoReturn:
    """Ends this process with the error's message in one line, preceded by a traceback if the program is at fault."""
    import jax

    if isinstance(error, KeyboardInterrupt):
        end_of_command()  # with the line and the status of the signal
    name = f"process {jax.process_index()} on {socket.gethostname()}"
    if isinstance(error, jax.errors.JaxRuntimeError | ValueError) and _LOST.search(str(error)):
        reason = _one_line(error)[:200]
        error = PeerLost(f"another process is gone ({reason}); the same launch resumes from the last checkpoint")
    line = _one_line(of_machine(error) or error)
    if exit_status(error) == 1:
        traceback.print_exception(error)
    sys.stdout.flush()
    leave(f"{name}: {line or 'interrupted'}", exit_status(error))


def _find_others(coordinator: str | None, processes: int | None, process: int | None, heartbeat: int) -> bool:
    global _is_alone
    if processes == 1 and not process:
        _is_alone = True
        return False
    given = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return _join_launched(heartbeat)
    if coordinator is None or processes is None or process is None:
        raise UserError(f"--coordinator, --processes and --process go together; missing: {', '.join(missing)}")
    match = re.fullmatch(r"(?:[^\s:]+|\[[0-9a-fA-F:]+\]):(\d{1,5})", coordinator)
    if not match or not 1 <= int(match[1]) <= 65_535:
        raise UserError(f"--coordinator: expected HOST:PORT with a port of 1 to 65535, got {coordinator!r}")
    if not 0 <= process < processes:
        raise UserError(f"--process: expected 0 to {processes - 1}, with --processes {processes}; got {process}")
    if process == 0:  # JAX itself might crash. A process of an earlier launch that is ending may hold the port.
        try:
            socket.create_server(("", int(match[1]))).close()
        except OSError as error:
            raise PeerLost(f"--coordinator: port {match[1]} of this host cannot be had: {_one_line(error)}") from None
    given = {"coordinator_address": coordinator, "num_processes": processes, "process_id": process}
    _initialize(heartbeat, cluster_detection_method="deactivate", **given)
    return True


def _join_launched(heartbeat: int) -> bool:
    """Connects to the processes that a launcher started, if JAX detects one; returns whether there are others."""
    from elmo_jax.distributed.mesh import is_in_use

    if os.environ.get("SLURM_NTASKS") == "1":
        return False
    if is_in_use():  # called from a program that uses JAX already
        check_connected()
        return False
    try:
        with warnings.catch_warnings(record=True) as warned:  # shown below, and only in an indexed job of Kubernetes
            warnings.simplefilter("always")
            _initialize(heartbeat, local_device_ids=_devices_of_node())
    except (UserError, PeerLost):
        raise
    except Exception as error:  # the clients of the launchers raise exceptions of any kind
        if "coordinator_address should be defined" not in str(error):
            raise UserError(f"{_NOT_CONNECTED} ({_one_line(error)}); {_BY_HAND}") from error
        if _in_indexed_job():  # there are many pods, and each would train a separate model
            advice = next((warning for warning in warned if "kubernetes" in str(warning.message)), error)
            raise UserError(f"{_NOT_CONNECTED} ({_one_line(advice)}); {_BY_HAND}") from None
        return False
    import jax

    return jax.process_count() > 1


def _devices_of_node() -> list[int] | None:
    """Returns all GPUs of a Slurm node that runs one task, to which JAX would give the first one alone; else None."""
    tasks = os.environ.get("SLURM_STEP_TASKS_PER_NODE", os.environ.get("SLURM_TASKS_PER_NODE", ""))
    gpus = os.environ.get("SLURM_GPUS_ON_NODE", "")
    if gpus.isdecimal() and all(re.fullmatch(r"1(\(x\d+\))?", part) for part in tasks.split(",")):
        return list(range(int(gpus)))
    return None


def _initialize(heartbeat: int, **arguments: Any) -> None:
    import jax

    hint = "" if "coordinator_address" in arguments else "; for a single process, give --processes 1"

    # JAX's preemption service would handle SIGTERM itself. When JAX's own timeout passes, it aborts the process without
    # a readable line; therefore its timeout is longer than that of the timer here.
    jax.config.update("jax_enable_preemption_service", False)
    reason = f"the other processes did not come within {START_SECONDS} seconds{hint}"
    patience = threading.Timer(START_SECONDS, leave, (reason, TRY_AGAIN))
    patience.daemon = True
    patience.start()
    try:
        jax.distributed.initialize(
            initialization_timeout=START_SECONDS + 60,
            heartbeat_timeout_seconds=heartbeat,
            shutdown_timeout_seconds=EXPORT_SECONDS,
            **arguments,
        )
    except jax.errors.JaxRuntimeError as error:
        raise PeerLost(f"the processes cannot connect: {_one_line(error)}") from None
    finally:
        patience.cancel()


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
