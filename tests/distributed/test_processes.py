"""Tests how processes find each other: by three options, by a launcher's environment, or not at all."""

import argparse
import functools
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from elmo_jax.cli.options import add_process_options
from elmo_jax.cli.values import Parser
from elmo_jax.distributed import initialize
from elmo_jax.distributed.initialize import check_connected, connected
from elmo_jax.errors import TRY_AGAIN, PeerLost, UserError, exit_status
from tests.distributed.pods import free_port
from tests.end_to_end.forked import ROOT, SERVER, Forked

LAUNCHERS = ("SLURM_", "OMPI_", "KUBERNETES_", "TPU_", "MEGASCALE_", "JOB_COMPLETION_INDEX", "JAX_COORDINATOR")


def join(*flags: str) -> None:
    """Joins the other processes, and prints which one this is."""
    parser = argparse.ArgumentParser()
    add_process_options(parser)
    options = parser.parse_args(flags)
    try:
        with connected(options.coordinator, options.processes, options.process, options.heartbeat):
            print("process", jax.process_index(), "of", jax.process_count(), jax.distributed.is_initialized())
    except PeerLost as error:  # as the command does
        print(f"elmo-jax: {error}", file=sys.stderr)
        sys.exit(exit_status(error))


def impatient(*flags: str) -> None:
    """Joins the others, and waits for them for a second."""
    initialize.START_SECONDS = 1
    join(*flags)


def clean(variables: dict[str, str]) -> dict[str, str]:
    """The environment of one device without a launcher, and some variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return kept | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"} | variables


def start(*flags: str, function: str = "join", **environment: str) -> Forked:
    """A process that joins the others, says who it is, and ends."""
    name = f"tests.distributed.test_processes:{function}"
    return Forked(SERVER, (name, flags), ROOT, clean(environment))


def told(process: Forked, status: int = 0) -> tuple[str, str]:
    """Returns what a process says of itself, and the last line of its errors."""
    out, errors = process.communicate(timeout=240)
    assert process.returncode == status, (process.returncode, out, errors)
    lines = [line for line in out.splitlines() if line.startswith("process")]
    return "".join(lines), (errors.splitlines() or [""])[-1]


def test_alone() -> None:
    both = [start(), start("--processes", "1")]
    assert [told(process)[0] for process in both] == ["process 0 of 1 False"] * 2


def used_before(*flags: str) -> None:
    """A program uses JAX, and then trains."""
    jax.devices()
    for train in (functools.partial(join, *flags), check_connected):
        try:
            train()
        except UserError as error:
            print("process refused:", error)


def test_a_program_that_has_used_jax_does_not_train_alone() -> None:
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2"}
    slurm |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    mpi = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911", "OMPI_COMM_WORLD_SIZE": "2"}
    mpi |= {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    for launcher, variable in ((slurm, "SLURM_NTASKS"), (mpi, "OMPI_COMM_WORLD_SIZE")):
        out, _ = told(start(function="used_before", **launcher))
        assert out.count(f"process refused: this is one of several processes ({variable})") == 2
    assert told(start(function="used_before"))[0] == "process 0 of 1 False"
    in_batch_script = {name: value for name, value in slurm.items() if name != "SLURM_STEP_NODELIST"}  # without srun
    assert told(start(function="used_before", **in_batch_script))[0] == "process 0 of 1 False"
    assert told(start("--processes", "1", function="used_before", **slurm))[0].startswith("process 0 of 1 False")


def test_slurm() -> None:
    """Two tasks of one node are started as by srun."""
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2"}
    port = str(free_port())
    both = [start(**slurm, SLURM_PROCID=rank, SLURM_LOCALID=rank, JAX_COORDINATOR_PORT=port) for rank in ("0", "1")]
    assert [told(process)[0] for process in both] == ["process 0 of 2 True", "process 1 of 2 True"]


def test_one_slurm_task_is_alone() -> None:
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "nowhere", "SLURM_NTASKS": "1"}
    assert told(start(**slurm, SLURM_PROCID="0", SLURM_LOCALID="0"))[0] == "process 0 of 1 False"


def test_tpu_pod(tmp_path: Path) -> None:
    """Two hosts of a TPU slice are started as by Kubernetes; JAX looks for libtpu and is told that there are chips."""
    library = tmp_path / "libtpu.so"
    library.touch()
    pod = {"TPU_LIBRARY_PATH": str(library), "JAX_FORCE_TPU_INIT": "1", "TPU_WORKER_HOSTNAMES": "127.0.0.1,127.0.0.1"}
    pod |= {"MEGASCALE_COORDINATOR_ADDRESS": "127.0.0.1", "MEGASCALE_NUM_SLICES": "1", "MEGASCALE_SLICE_ID": "0"}
    port = str(free_port())
    code = "from tests.distributed.test_processes import join; join()"
    both = [
        subprocess.Popen(  # JAX looks for a TPU when it is imported
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=clean(pod | {"TPU_WORKER_ID": worker, "JAX_COORDINATOR_PORT": port}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for worker in ("0", "1")
    ]
    printed = [process.communicate(timeout=240)[0].splitlines()[-1] for process in both]
    assert printed == ["process 0 of 2 True", "process 1 of 2 True"]


def test_pod_of_an_indexed_job_that_cannot_ask_kubernetes() -> None:
    """It must not train for itself, as each of the others would."""
    _, line = told(start(KUBERNETES_SERVICE_HOST="127.0.0.1", JOB_COMPLETION_INDEX="0"), status=1)
    assert "UserError: a launcher of many processes was found" in line and "--processes 1" in line
    assert told(start(KUBERNETES_SERVICE_HOST="127.0.0.1"))[0] == "process 0 of 1 False"


def test_others_do_not_come() -> None:
    """Two launches, of each of which one process is missing."""
    flags = ("--processes", "2")
    lonely = [
        start(*flags, "--coordinator", f"127.0.0.1:{free_port()}", "--process", process, function="impatient")
        for process in ("0", "1")
    ]
    for process in lonely:
        assert told(process, status=TRY_AGAIN)[1] == "elmo-jax: the other processes did not come within 1 seconds"


def test_port_in_use() -> None:
    with socket.create_server(("", 0)) as taken:
        flags = ("--coordinator", f"127.0.0.1:{taken.getsockname()[1]}", "--processes", "2", "--process", "0")
        _, line = told(start(*flags), status=TRY_AGAIN)
    assert "cannot be had: [Errno 98] Address already in use" in line


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--processes", "2"], "missing: --coordinator, --process"),
        (["--process", "0"], "missing: --coordinator, --processes"),
        (
            ["--coordinator", "host", "--processes", "2", "--process", "0"],
            "expected HOST:PORT with a port of 1 to 65535, got",
        ),
        (["--coordinator", "host:0", "--processes", "2", "--process", "0"], "port of 1 to 65535, got 'host:0'"),
        (["--coordinator", "[::1]:65536", "--processes", "2", "--process", "0"], r"65535, got '\[::1\]:65536'"),
        (["--coordinator", "host:1", "--processes", "2", "--process", "2"], "expected 0 to 1"),
        (
            ["--coordinator", "host:1", "--processes", "0", "--process", "0"],
            "--processes: expected a whole number of at least 1",
        ),
        (["--heartbeat", "0"], "--heartbeat: expected a whole number of at least 5 and at most 3,600, got '0'"),
    ],
)
def test_flags_that_do_not_fit(flags: list[str], words: str) -> None:
    parser = Parser()
    add_process_options(parser)
    with pytest.raises(UserError, match=words):
        options = parser.parse_args(flags)
        with connected(options.coordinator, options.processes, options.process, options.heartbeat):
            pass
