"""Launches of one command as many processes on this machine, which find each other by the three flags."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.end_to_end import commands as commands_module
from tests.end_to_end.commands import (
    Commands,
    Ended,
    Forked,
    prepare,
    pretrain_arguments,
    small_experiment,
    wait,
)
from tests.end_to_end.forked import COMMAND

HEARTBEAT_SECONDS = "10"
STEPS = 36  # the number of steps of every run that is not stopped
# Another order of sums changes the last bits, which training amplifies, the less the lower the learning rate is.
SETTINGS = ("--config.train.optimizer.learning_rate=0.05", "--config.data.mixture=(('early',2.0),)")
SOURCES = ("early=text/1790*.txt", "later=text/179[1-6]*.txt")  # of the corpus


def prepared(folder: Path, steps: int = STEPS) -> Commands:
    """A folder with the small experiment and its corpus of two named sources, to run commands in."""
    commands = small_experiment(folder, steps)
    done = prepare(commands, *SOURCES)
    assert done.status == 0, done.stderr
    return commands


def free_port() -> int:
    """A port of this machine that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(
    commands: Commands,
    workdir: Path,
    processes: int,
    devices: int,
    *overrides: str,
    only: dict[int, Sequence[str]] | None = None,
    function: str = COMMAND,
) -> list[Forked]:
    """Starts `processes` processes of `devices` devices each; some of them may have arguments that `only` they have.

    `function`, "module:name", stands for the command.
    """
    coordinator = f"127.0.0.1:{free_port()}"
    return [
        commands.call(
            function,
            *pretrain_arguments(workdir, *SETTINGS, *overrides),
            *(only or {}).get(index, ()),
            *("--coordinator", coordinator, "--processes", str(processes), "--process", str(index)),
            *("--heartbeat", HEARTBEAT_SECONDS),
            devices=devices,
        )
        for index in range(processes)
    ]


def ends(launched: Sequence[Forked]) -> list[Ended]:
    """Returns how all processes of a launch have ended, and ends those that still run."""
    try:
        return [wait(process) for process in launched]
    finally:
        for process in launched:
            process.kill()


def launch(commands: Commands, workdir: Path, processes: int, devices: int, *overrides: str) -> list[Ended]:
    """A launch of as many processes, or of one alone without any flags, to its end, which must be a good one."""
    if processes == 1:
        ended = [commands.pretrain(workdir, *SETTINGS, *overrides, devices=devices)]
    else:
        ended = ends(start(commands, workdir, processes, devices, *overrides))
    assert [e.status for e in ended] == [0] * processes, [e.stderr for e in ended]
    return ended


def signalled_when(
    launched: Sequence[Forked], victims: Sequence[int], number: int, condition: Callable[[], bool]
) -> bool:
    """Sends a signal to some processes of a launch once a condition is seen; false where one has ended before."""
    deadline = time.monotonic() + commands_module.ENOUGH_SECONDS
    while all(process.poll() is None for process in launched):
        if time.monotonic() > deadline:
            for process in launched:
                process.kill()
            raise AssertionError("the condition was never met")
        if condition():
            for victim in victims:
                os.kill(launched[victim].pid, number)
            return True
        time.sleep(0.002)
    return False


def said(ended: Ended) -> list[str]:
    """Returns the output of a process without the lines of Gloo, the library of collectives between CPUs.

    Its threads write parts of lines, so that one line may stand in another one.
    """
    lines = (ended.stdout + ended.stderr).splitlines()
    return [line for line in lines if not line.startswith("[Gloo]") and "Expected number of connected peer" not in line]


def last_words(ended: Ended) -> str:
    """Returns the last line of a process that failed."""
    return [line for line in ended.stderr.splitlines() if line.startswith("elmo-jax: ")][-1]
