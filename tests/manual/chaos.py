"""Kills a run again and again, and checks that it ends with the parameters of a run that was not disturbed.

`make chaos` kills a hundred times by SIGKILL: half of the kills hit a run of one process, and half a random process, or
both, of a run of two. They come at random steps, during saves, during evaluations and during exports. The program
reports what it hit, by what it aimed at and by what the kill left on the disk. Each time the remaining process must end
by itself with a status after which a scheduler starts it again; then the same command is started again. The final
parameters are compared bit by bit, since the same processes and devices add up in the same order.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elmo_jax.checkpoints.export import NAME
from elmo_jax.errors import TRY_AGAIN
from tests.distributed.pods import SETTINGS, ends, launch, prepared, signalled_when, start
from tests.end_to_end import commands as commands_module
from tests.end_to_end.commands import (
    Commands,
    Ended,
    assert_same_end,
    being_saved,
    checkpoint_steps,
    pretrain_arguments,
    records,
    steps_trained,
)

PROCESSES, DEVICES = 2, 2
SECONDS = 90  # the time within which the other processes must end; the heartbeat is 10 seconds
EVALUATION, SPACE = 40, 40  # the steps between two evaluations of the small experiment, and between two kills
ATTEMPTS = 20  # the number of attempts, since the run may be complete before a signal reaches it


def kill(
    commands: Commands, run: Path, victims: list[int], step: int, kind: str = "step", processes: int = PROCESSES
) -> list[Ended]:
    """Launches the run, kills some of its processes at a moment of some kind, and returns how all have ended.

    Args:
      commands: the folder of the run.
      run: the run's folder.
      victims: the processes to kill.
      step: the number of steps that must have been trained.
      kind: what the run is to be doing, a key of `KINDS`.
      processes: the number of processes; with fewer, each has more devices.
    """
    before = run.with_name(f"{run.name}.before")
    for _ in range(ATTEMPTS):
        shutil.rmtree(before, ignore_errors=True)
        if run.exists():
            shutil.copytree(run, before)
        earlier = opened(run)
        launched = started(commands, run, processes)
        hit = signalled_when(
            launched,
            victims,
            signal.SIGKILL,
            lambda earlier=earlier: opened(run) != earlier and steps_trained(run) >= step and KINDS[kind](run),
        )
        killed_at = time.monotonic()
        ended = ends(launched)
        if hit and not (run / "result.json").exists():
            break
        shutil.rmtree(run)
        if before.exists():
            shutil.copytree(before, run)
    else:
        raise AssertionError(f"the run was always complete before it could be killed at: {kind}")
    assert time.monotonic() - killed_at < SECONDS
    left = [index for index in range(processes) if index not in victims]
    for index in left:  # these end by an error of a collective or by JAX's heartbeat
        assert ended[index].status in (TRY_AGAIN, -signal.SIGABRT), ended[index]
    statuses = " ".join(str(ended[index].status) for index in left)
    printed = f"the other ended with {statuses}" if left else "no process was left"
    seconds = time.monotonic() - killed_at
    print(f"killed {victims} of {processes}, {kind}, step {step} or later; {printed} after {seconds:.1f} s", flush=True)
    return ended


def opened(run: Path) -> int:
    """Returns when the metrics were last opened or written; a launch first drops the records past its checkpoint."""
    path = run / "metrics.jsonl"
    return path.stat().st_mtime_ns if path.exists() else 0


def chaos(commands: Commands, run: Path, whole: Path, moments: list[tuple[list[int], int]]) -> list[list[Ended]]:
    """Kills a run at each moment (victims, step), and asserts that its final parameters are those of `whole`."""
    ended = [kill(commands, run, victims, step) for victims, step in moments]
    ended.append(launch(commands, run, PROCESSES, DEVICES))
    assert_same_end(run, whole, checkpoint_steps(whole)[-1])
    return ended


def started(commands: Commands, run: Path, processes: int) -> list[Any]:
    """A launch of one or two processes, with four devices in all."""
    if processes == 1:
        return [commands.start(*pretrain_arguments(run, *SETTINGS), devices=PROCESSES * DEVICES)]
    return start(commands, run, processes, DEVICES)


def evaluating(run: Path) -> bool:
    """Whether the held-out text is being evaluated: the losses of its step are written, its perplexity is not."""
    actual = records(run)
    trained = [record["step"] for record in actual if "train/loss/forward" in record]
    evaluated = [record["step"] for record in actual if "heldout/perplexity/average" in record]
    return bool(trained) and trained[-1] % EVALUATION == 0 and trained[-1] not in evaluated


def exporting(run: Path) -> bool:
    """Whether the export is being written."""
    return (run / "export" / f".{NAME}.tmp").exists()


KINDS: dict[str, Callable[[Path], bool]] = {
    "step": lambda run: True,
    "save": being_saved,
    "evaluation": evaluating,
    "export": exporting,
}


def plan(kills: int, processes: int, chance: random.Random) -> list[tuple[list[int], int, str]]:
    """Returns kills as (victims, step, kind): two fifths at any step, a fifth each at the other kinds, exports last."""
    choices = [[0]] if processes == 1 else [[0], [1], [0, 1]]
    exports = kills // 5
    kinds = [("step", "save", "step", "evaluation")[number % 4] for number in range(kills - exports)]
    actual = [(chance.choice(choices), SPACE * n + chance.randrange(5, 20), kind) for n, kind in enumerate(kinds)]
    return actual + [(chance.choice(choices), 0, "export")] * exports


def main() -> None:
    """Kills a hundred times, or as often as `--kills` says: half a run of one process, and half a run of two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    commands_module.ENOUGH_SECONDS = 3600  # this run is longer than those of tests
    chance = random.Random(options.seed)
    hit: Counter[str] = Counter()
    began = time.monotonic()
    for processes in (1, 2):
        kills = plan(options.kills // 2, processes, chance)
        steps = SPACE * (len(kills) + 2)
        with tempfile.TemporaryDirectory(prefix="elmo-jax-chaos-") as temporary:
            commands = prepared(Path(temporary), steps)
            whole, run = commands.folder / "whole", commands.folder / "run"
            ended = ends(started(commands, whole, processes))
            assert [e.status for e in ended] == [0] * processes, ended
            print(f"{processes} processes, {steps} steps without kills", flush=True)
            for victims, step, kind in kills:
                kill(commands, run, victims, step, kind, processes)
                hit[f"{processes} processes, aimed at: {kind}"] += 1
                hit[f"{processes} processes, left: {what_is_left(run)}"] += 1
            ended = ends(started(commands, run, processes))
            assert [e.status for e in ended] == [0] * processes, ended
            assert_same_end(run, whole, checkpoint_steps(whole)[-1])
    print(f"{sum(hit.values()) // 2} kills in {time.monotonic() - began:.0f} s: the same parameters, bit for bit")
    for name, number in sorted(hit.items()):
        print(f"  {name:<50} {number}")


def what_is_left(run: Path) -> str:
    """What a kill interrupted, by what it left on the disk."""
    for name in ("save", "export", "evaluation"):
        if KINDS[name](run):
            return f"half a {name}" if name == "save" else name
    return "between two steps"


if __name__ == "__main__":
    main()
