"""Kills a run of two processes again and again, and checks that it ends with the parameters of an undisturbed run.

`make chaos` kills twenty times, at a random moment, a random process or both, by SIGKILL. Each time the remaining
process must end by itself with a status after which a scheduler starts it again; then the same command is started
again. The final parameters are compared bit by bit, since the same processes and devices add up in the same order.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

from elmo_jax.errors import TRY_AGAIN
from tests.distributed.pods import ends, launch, prepared, signalled_when, start
from tests.end_to_end import commands as commands_module
from tests.end_to_end.commands import Commands, Ended, assert_same_end, checkpoint_steps, steps_trained

PROCESSES, DEVICES = 2, 2
SECONDS = 90  # the time within which the other processes must end; the heartbeat is 10 seconds
ATTEMPTS = 20  # the number of attempts, since the run may be complete before a signal reaches it


def kill(commands: Commands, run: Path, victims: list[int], step: int) -> list[Ended]:
    """Launches the run, kills some processes once it has trained `step` steps, and returns how all have ended."""
    before = run.with_name(f"{run.name}.before")
    for _ in range(ATTEMPTS):
        shutil.rmtree(before, ignore_errors=True)
        if run.exists():
            shutil.copytree(run, before)
        earlier = opened(run)
        launched = start(commands, run, PROCESSES, DEVICES)
        hit = signalled_when(
            launched,
            victims,
            signal.SIGKILL,
            lambda earlier=earlier: opened(run) != earlier and steps_trained(run) >= step,
        )
        killed_at = time.monotonic()
        ended = ends(launched)
        if hit and not (run / "result.json").exists():
            break
        shutil.rmtree(run)
        if before.exists():
            shutil.copytree(before, run)
    else:
        raise AssertionError("the run was always complete before it could be killed")
    assert time.monotonic() - killed_at < SECONDS
    left = [index for index in range(PROCESSES) if index not in victims]
    for index in left:  # these end by an error of a collective or by JAX's heartbeat
        assert ended[index].status in (TRY_AGAIN, -signal.SIGABRT), ended[index]
    statuses = " ".join(str(ended[index].status) for index in left)
    said = f"the other ended with {statuses}" if left else "no process was left"
    print(f"killed {victims} at step {step} or later; {said} after {time.monotonic() - killed_at:.1f} s", flush=True)
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


def main() -> None:
    """Kills twenty times, or as often as `--kills` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    commands_module.ENOUGH_SECONDS = 3600  # this run is longer than those of tests
    chance = random.Random(options.seed)
    steps = 20 * (options.kills + 1)
    moments = [
        (chance.choice([[0], [1], [0, 1]]), 20 * number + chance.randrange(5, 20)) for number in range(options.kills)
    ]
    with tempfile.TemporaryDirectory(prefix="elmo-jax-chaos-") as temporary:
        commands = prepared(Path(temporary), steps)
        began = time.monotonic()
        launch(commands, commands.folder / "whole", PROCESSES, DEVICES)
        print(f"{steps} steps without kills: {time.monotonic() - began:.0f} s", flush=True)
        chaos(commands, commands.folder / "run", commands.folder / "whole", moments)
    print(f"{options.kills} kills in {time.monotonic() - began:.0f} s: the same parameters, bit for bit")


if __name__ == "__main__":
    main()
