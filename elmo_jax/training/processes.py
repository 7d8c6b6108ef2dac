"""One command on many hosts: the processes of a run find each other.

On TPU pods, under Slurm, Open MPI and Kubernetes, JAX finds the peers by what the launcher left in the environment.
Anywhere else three flags say who they are. Without either, the process is alone and starts no coordinator.
"""

from __future__ import annotations

import argparse
import os
import re
import warnings
from collections.abc import Mapping
from typing import Any

from elmo_jax.errors import PeerLost, UserError

START_SECONDS = 300  # that the processes wait for each other at the start: hosts of a pod may come up minutes apart

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


def connect(options: argparse.Namespace) -> None:
    """Joins the other processes; the devices of all of them are there afterwards. Call it before JAX is used.

    Args:
      options: of a parser with `add_process_flags`.

    Raises:
      UserError: flags that do not go together; a launcher that cannot be understood.
      PeerLost: not all processes came within `START_SECONDS`.
    """
    coordinator, processes, process = options.coordinator, options.processes, options.process
    if processes == 1 and not process:
        return
    given = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        _join_launched()
        return
    if missing:
        raise UserError(f"--coordinator, --processes and --process go together; missing: {', '.join(missing)}")
    if not re.fullmatch(r"[^\s:]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", coordinator):
        raise UserError(f"--coordinator: expected HOST:PORT, got {coordinator!r}")
    if not 0 <= process < processes:
        raise UserError(f"--process: expected 0 to {processes - 1}, with --processes {processes}; got {process}")
    _initialize(
        coordinator_address=coordinator,
        num_processes=processes,
        process_id=process,
        cluster_detection_method="deactivate",
    )


def _join_launched() -> None:
    """Joins the processes that a launcher started, if JAX finds that one did."""
    environment = os.environ
    if environment.get("SLURM_NTASKS") == "1":
        return
    in_indexed_job = "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment
    try:
        with warnings.catch_warnings(record=True) as warned:  # JAX's advice is for the indexed jobs of Kubernetes alone
            warnings.simplefilter("always")
            _initialize(local_device_ids=_devices_of_node(environment))
    except (UserError, PeerLost):
        raise
    except Exception as error:  # whatever the launcher's own client raises
        if "coordinator_address should be defined" not in str(error):
            raise UserError(f"{_NOT_FOUND} ({_one_line(error)}); {_BY_HAND}") from error
        if in_indexed_job:  # many pods, and each would train for itself
            advice = next((warning for warning in warned if "kubernetes" in str(warning.message)), error)
            raise UserError(f"{_NOT_FOUND} ({_one_line(advice)}); {_BY_HAND}") from None


def _devices_of_node(environment: Mapping[str, str]) -> list[int] | None:
    """All GPUs of the node for the only task of a Slurm node, which JAX would give its first one; else JAX's choice."""
    tasks = environment.get("SLURM_STEP_TASKS_PER_NODE", environment.get("SLURM_TASKS_PER_NODE", ""))
    gpus = environment.get("SLURM_GPUS_ON_NODE", "")
    if gpus.isdecimal() and all(re.fullmatch(r"1(\(x\d+\))?", part) for part in tasks.split(",")):
        return list(range(int(gpus)))
    return None


def _initialize(**arguments: Any) -> None:
    import jax

    try:
        jax.distributed.initialize(initialization_timeout=START_SECONDS, **arguments)
    except jax.errors.JaxRuntimeError as error:
        raise PeerLost(f"the processes did not come together in {START_SECONDS} seconds: {_one_line(error)}") from None


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
