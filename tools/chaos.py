"""A run of two processes is killed again and again, and ends in the parameters of a run that was left alone.

`make chaos` kills twenty times: at a random moment, by SIGKILL, a random process or both. Every time the one that is
left must end by itself, with a status after which a scheduler starts it again; then the same command is started
again. The end is compared bit by bit: the same processes and devices add up in the same order.
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
SECONDS = 90  # within which the others end; the heartbeat is 10 here
ATTEMPTS = 20  # the run may be through before a signal reaches it


def kill(commands: Commands, run: Path, victims: list[int], step: int) -> list[Ended]:
    """Launches the run, and kills some of its processes once it has trained `step` steps; the ends of all."""
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
        raise AssertionError("the run was always through before it could be killed")
    assert time.monotonic() - killed_at < SECONDS
    left = [index for index in range(PROCESSES) if index not in victims]
    for index in left:  # by what its collectives say, or by JAX's heartbeat
        assert ended[index].status in (TRY_AGAIN, -signal.SIGABRT), ended[index]
    statuses = " ".join(str(ended[index].status) for index in left)
    said = f"the other ended with {statuses}" if left else "nobody was left"
    print(f"killed {victims} at step {step} or later; {said} after {time.monotonic() - killed_at:.1f} s", flush=True)
    return ended


def opened(run: Path) -> int:
    """When the metrics were last opened or written: a launch first drops the records past its checkpoint."""
    path = run / "metrics.jsonl"
    return path.stat().st_mtime_ns if path.exists() else 0


def chaos(commands: Commands, run: Path, whole: Path, moments: list[tuple[list[int], int]]) -> list[list[Ended]]:
    """Kills a run at each of the moments (victims, step), lets it end, and asserts that its end is that of `whole`."""
    ended = [kill(commands, run, victims, step) for victims, step in moments]
    ended.append(launch(commands, run, PROCESSES, DEVICES))
    assert_same_end(run, whole, checkpoint_steps(whole)[-1])
    return ended


def main() -> None:
    """Twenty kills."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    commands_module.ENOUGH_SECONDS = 3600  # not a test's few steps, and the machine may be busy
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
