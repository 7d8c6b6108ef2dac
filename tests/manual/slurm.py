"""Tests launch/slurm.sbatch under a real Slurm with two nodes on this machine: `make test-slurm`.

One task is killed, and then the job gets SIGTERM as at its time limit. Each time the job must be requeued and resume,
and its result must be that of an undisturbed run. A job with a user's mistake and a job that is cancelled must not be
requeued. All files are in a temporary folder, and all processes are ended in any case.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.distributed.pods import prepared
from tests.end_to_end.commands import Commands, assert_same_end, losses, steps_trained

ROOT = Path(__file__).parents[2]

STEPS = 120  # enough to kill a task and to stop the job on the way
PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo")
ENOUGH_SECONDS = 600  # the time after which a process is considered to hang

# The names of nodes must be addresses that every process can connect to, since JAX's coordinator is the first node.
CONFIGURATION = """\
ClusterName=elmo
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
KillWait=30
NodeName=127.0.0.1 NodeAddr=127.0.0.1 Port={ports[1]}
NodeName=127.0.0.2 NodeAddr=127.0.0.1 Port={ports[2]}
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def say(text: str) -> None:
    """Prints a line of the report."""
    print(text, flush=True)


def output(*command: str) -> str:
    """Returns what a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def wait_for(what: str, condition: Callable[[], object]) -> None:
    """Returns once the condition holds."""
    deadline = time.monotonic() + ENOUGH_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {ENOUGH_SECONDS} s for: {what}"
        time.sleep(0.05)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """Starts a Slurm of two nodes, which its commands find by SLURM_CONF."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [actual.getsockname()[1] for actual in sockets]
    for actual in sockets:
        actual.close()
    (folder / "state").mkdir()
    user = output("id", "-un").strip()
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(host=socket.gethostname(), folder=folder, ports=ports, user=user))
    os.environ["SLURM_CONF"] = str(configuration)
    key = f"{folder}/munge.key"
    subprocess.run(["mungekey", "--create", f"--keyfile={key}"], check=True)
    files = [f"--{kind}-file={folder}/munge.{kind}" for kind in ("pid", "log", "seed")]
    daemons: list[subprocess.Popen[bytes]] = []
    with (folder / "daemons.log").open("wb") as log:

        def start(*command: str) -> None:
            daemons.append(subprocess.Popen(command, stdout=log, stderr=log))

        try:
            start("munged", "--foreground", f"--key-file={key}", f"--socket={folder}/munge.socket", *files)
            wait_for("munge", lambda: (folder / "munge.socket").exists())
            start("slurmctld", "-D")
            for node in ("127.0.0.1", "127.0.0.2"):
                start("slurmd", "-D", "-N", node)
            wait_for("two idle nodes", lambda: _idle_nodes() == 2)
            yield
        finally:
            for daemon in reversed(daemons):
                daemon.terminate()
            for daemon in daemons:
                try:
                    daemon.wait(30)
                except subprocess.TimeoutExpired:
                    daemon.kill()


def _idle_nodes() -> int:
    actual = subprocess.run(["sinfo", "-h", "-t", "idle", "-o", "%D"], capture_output=True, text=True)
    return int(actual.stdout or 0) if actual.returncode == 0 else 0


@dataclasses.dataclass(frozen=True)
class Job:
    """A submitted job."""

    number: str
    folder: Path

    def metadata(self) -> dict[str, str]:
        """Returns what Slurm reports about the job."""
        words = output("scontrol", "show", "job", "-o", self.number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def state(self) -> str:
        """Returns the state of the job: PENDING, RUNNING, COMPLETED, …"""
        return self.metadata()["JobState"]

    def launches(self) -> int:
        """Returns the number of times that the job was requeued."""
        return int(self.metadata()["Restarts"])

    def printed(self) -> str:
        """Returns the output of all launches of the job."""
        path = self.folder / f"elmo-{self.number}.out"
        return path.read_text() if path.exists() else ""

    def wait(self) -> str:
        """Waits for the end of the job and returns its final state."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        wait_for(f"the end of job {self.number}", lambda: self.state() in over)
        return self.state()

    def process(self, task: int) -> int:
        """Returns the process of a task, which is found by the variables that Slurm sets."""
        wanted = {f"SLURM_PROCID={task}".encode(), f"SLURM_JOB_ID={self.number}".encode()}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                arguments = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else [b""]
                is_shell = arguments[0].endswith(b"bash")  # the parent of the process, which has its arguments too
                environment = set((entry / "environ").read_bytes().split(b"\0"))
                if b"elmo_jax" in arguments and not is_shell and wanted <= environment:
                    return int(entry.name)
        raise AssertionError(f"task {task} of job {self.number} does not run")


def submit(commands: Commands, nodes: int, workdir: str, *overrides: str) -> Job:
    """Submits a run of the small experiment by sbatch."""
    here = [f"--nodes={nodes}", "--gpus-per-node=0", "--cpus-per-task=1", "--time=30"]
    pretrain = ["pretrain", "--config", "small.py", "--workdir", workdir, *overrides]
    environment = commands.environment() | {"ELMO_JAX": f"{sys.executable} -m elmo_jax", "PYTHONPATH": str(ROOT)}
    command = ["sbatch", "--parsable", *here, str(ROOT / "launch" / "slurm.sbatch"), "--", *pretrain]
    done = subprocess.run(command, cwd=commands.folder, env=environment, check=True, capture_output=True, text=True)
    return Job(done.stdout.strip(), commands.folder)


def check(commands: Commands, nodes: int) -> None:
    """Runs all checks. Raises `AssertionError` if one fails."""
    folder = commands.folder
    job = submit(commands, nodes, "whole")
    assert job.wait() == "COMPLETED" and job.launches() == 0, job.printed()
    say(f"job {job.number}: {nodes} nodes, undisturbed: {job.state()}")

    run = folder / "run"
    job = submit(commands, nodes, "run")
    wait_for("step 25", lambda: steps_trained(run) >= 25)
    os.kill(job.process(nodes - 1), signal.SIGKILL)
    say(f"job {job.number}: task {nodes - 1} killed at step {steps_trained(run)}")
    wait_for("the requeue", lambda: job.launches() == 1)
    say(f"job {job.number}: requeued, {job.state()}")
    before = steps_trained(run)
    wait_for("more steps", lambda: job.state() == "RUNNING" and steps_trained(run) >= max(before + 10, 60))
    output("scancel", "--signal=TERM", job.number)  # the signal that --signal sends to the tasks before the time limit
    say(f"job {job.number}: SIGTERM to all tasks at step {steps_trained(run)}")
    wait_for("the requeue", lambda: job.launches() == 2)
    assert "stopped by SIGTERM" in job.printed(), job.printed()
    assert job.wait() == "COMPLETED", job.printed()
    assert job.launches() == 2
    assert_same_end(run, folder / "whole", STEPS)
    same = losses(run), losses(folder / "whole")
    assert all(same[0][step] == same[1][step] for step in (20, 40, STEPS))
    say(f"job {job.number}: {job.state()} after 2 requeues; parameters as those of the undisturbed run, bit for bit")
    for line in job.printed().splitlines():
        if line.startswith(("launch ", "stopped ")):
            say(f"    {line}")

    job = submit(commands, nodes, "mistake", "--config.train.batch_size=-1")
    assert job.wait() == "FAILED" and job.launches() == 0, job.printed()
    say(f"job {job.number}: a mistake: {job.state()}, exit code {job.metadata()['ExitCode']}, not requeued")

    cancelled = folder / "cancelled"
    job = submit(commands, nodes, "cancelled")
    wait_for("step 10", lambda: steps_trained(cancelled) >= 10)
    output("scancel", job.number)
    assert job.wait() == "CANCELLED", job.printed()
    wait_for("its end", lambda: "launch 0 ended" in job.printed() or "DUE TO SIGNAL" in job.printed())
    time.sleep(2)  # a requeue would happen at the very end of the job
    assert job.state() == "CANCELLED" and job.launches() == 0
    say(f"job {job.number}: scancel: {job.state()}, not requeued")


def main() -> int:
    """Runs the checks; returns 0 if all pass."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--nodes", type=int, default=2, choices=(1, 2))
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    options = parser.parse_args()
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        trouble = f"{', '.join(missing)}: not installed" if missing else "slurmd must be started by root"
        print(
            f"make test-slurm: {trouble}; on Debian: apt-get install slurm-wlm munge, and run it as root",
            file=sys.stderr,
        )
        return 2
    folder = Path(tempfile.mkdtemp(prefix="elmo-slurm-"))
    folder.chmod(0o755)  # munge requires a folder that all may read and only its owner may write
    try:
        with cluster(folder):
            say(f"a Slurm of two nodes in {folder}: {output('sinfo', '--version').strip()}")
            work = folder / "work"
            work.mkdir()
            check(prepared(work, STEPS), options.nodes)
    finally:
        if not options.keep:
            shutil.rmtree(folder)
    say("all checks pass")
    return 0


if __name__ == "__main__":
    sys.exit(main())
