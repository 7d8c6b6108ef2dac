"""Measures JAX's own heartbeat: how long until all processes of a run have ended after one dies, and their messages.

    python -m tests.manual.heartbeat

The script starts 2 and 4 processes on this machine with `jax.distributed.initialize` and without this project, kills or
stops one of them, and reports the seconds until each of the others has ended, its exit status, and its last line. In
the form `exchange`, the processes sum over all devices without pause, as a training does; on CPUs, Gloo notices at once
that the other end of a connection is closed. In the form `wait`, they exchange nothing, like an accelerator that waits
forever for a lost process; then only the heartbeat can notice.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEARTBEAT_SECONDS = 10
PATIENCE_SECONDS = 150

WORKER = """
import sys, time
import jax, jax.numpy as jnp
port, processes, process, form, heartbeat = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4], int(sys.argv[5])
jax.distributed.initialize(f"localhost:{port}", processes, process, cluster_detection_method="deactivate",
                           heartbeat_timeout_seconds=heartbeat)
mesh = jax.make_mesh((processes,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
ones = jax.make_array_from_callback((processes,), rows, lambda index: jnp.ones(1))
total = jax.jit(jnp.sum)
total(ones).block_until_ready()
print("ready", flush=True)
while True:
    if form == "exchange":
        total(ones).block_until_ready()
    time.sleep(0.05)
"""


def free_port() -> int:
    """Returns a port on which no process listens."""
    with socket.create_server(("localhost", 0)) as server:
        return int(server.getsockname()[1])


def measure(processes: int, victim: int, sent: signal.Signals, form: str, heartbeat: int) -> list[str]:
    """Measures one case; returns one line for each remaining process."""
    with tempfile.TemporaryDirectory() as folder:
        port, logs = free_port(), [Path(folder) / f"{i}.log" for i in range(processes)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
        started = []
        for i, log in enumerate(logs):
            arguments = [port, processes, i, form, heartbeat]
            command = [sys.executable, "-c", WORKER, *map(str, arguments)]
            with log.open("wb") as file:
                started.append(subprocess.Popen(command, stdout=file, stderr=file, env=environment))
        try:
            while not all("ready" in log.read_text(errors="replace") for log in logs):
                time.sleep(0.1)
            time.sleep(2)
            began = time.monotonic()
            started[victim].send_signal(sent)
            seconds: dict[int, float] = {}
            while len(seconds) < processes - 1 and time.monotonic() - began < PATIENCE_SECONDS:
                for i, process in enumerate(started):
                    if i != victim and i not in seconds and process.poll() is not None:
                        seconds[i] = time.monotonic() - began
                time.sleep(0.02)
        finally:
            for process in started:
                process.kill()
                process.wait()
        return [_line(i, seconds.get(i), process, logs[i]) for i, process in enumerate(started) if i != victim]


def _line(number: int, seconds: float | None, process: subprocess.Popen[bytes], log: Path) -> str:
    if seconds is None:
        return f"  process {number}: still running after {PATIENCE_SECONDS} s"
    lines = log.read_text(errors="replace").strip().splitlines()
    printed = f"{len(lines)} lines, the last one: {lines[-1][:160]}"
    return f"  process {number}: {seconds:5.1f} s, status {process.returncode}, {printed}"


def main() -> None:
    """Measures all cases."""
    parser = argparse.ArgumentParser(description="measures what JAX's heartbeat does when a process dies")
    parser.add_argument("--seconds", type=int, default=HEARTBEAT_SECONDS, help="heartbeat_timeout_seconds")
    options = parser.parse_args()
    for form in ("exchange", "wait"):
        for processes in (2, 4):
            for victim, sent in ((1, signal.SIGKILL), (1, signal.SIGSTOP), (0, signal.SIGKILL)):
                print(f"{form}, {processes} processes, {sent.name} to process {victim}:", flush=True)
                print("\n".join(measure(processes, victim, sent, form, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
