"""What the fuzzers damage and hand to the commands: a small text, its corpus, a run, exports and weights."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from elmo_jax.cli.main import main
from tests.end_to_end.commands import EXPERIMENT
from tests.tasks.tagging import overrides, write_problem

SECONDS = 600  # after which a command counts as one that hangs
SKIP = Path(__file__).parents[1] / "oracles" / "embedding" / "skip"
TEXT = "".join(
    f"the house of number {n % 7} met , and the people of place {n % 11} said : word{n % 23} !\n" for n in range(300)
)
TASK = '"""A tagger."""\n\nfrom elmo_jax.tasks.registry import default_config\n\n\ndef get_config():\n    return {}\n'


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended in this process.

    Attributes:
      status: its exit status; None where it raised something.
      stderr: what it wrote there.
      raised: the traceback of what it raised.
    """

    status: int | None
    stdout: str
    stderr: str
    raised: str = ""

    @property
    def fault(self) -> str:
        """What is wrong with the end; empty where it is a success or one line."""
        if self.raised:
            return self.raised
        if "Traceback" in self.stderr + self.stdout:
            return self.stderr + self.stdout
        lines = [line for line in self.stderr.splitlines() if line.startswith("elmo-jax: ")]
        if self.status == 0:
            return f"a success that complains: {lines}" if lines else ""
        if self.status != 2:
            return f"status {self.status}: {self.stderr}"
        if len(lines) != 1 or self.stderr.splitlines()[-1] != lines[0] or len(lines[0]) > 2000:
            return f"not one line: {self.stderr!r}"
        return ""


class Hangs(BaseException):
    """A command took too long."""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise Hangs


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Changes the folder of this process for a while."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run(arguments: Sequence[str], folder: Path) -> Ended:
    """Runs a command in this process and that folder, with its output captured."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace"))
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS)
    status, raised = None, ""
    sys.modules["gradio"] = None  # type: ignore[assignment]  # with it, demo would serve until an interrupt
    try:
        with inside(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(arguments)
    except SystemExit as error:
        status = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # a fault, whatever it is
        if isinstance(error, KeyboardInterrupt):
            raise
        raised = "".join(traceback.format_exception(error))[-3000:]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    out.flush()
    err.flush()
    return Ended(status, *(f.buffer.getvalue().decode("utf-8", "replace") for f in (out, err)), raised)  # type: ignore[attr-defined]


def made(folder: Path, *arguments: Any) -> None:
    """Runs a command that must succeed."""
    ended = run([str(a) for a in arguments], folder)
    assert ended.status == 0, (arguments, ended)


def make_things(folder: Path) -> Path:
    """Makes `text.txt`, `corpus`, `run`, `out` (an export), `problem` and `task` (a run of a tagger) in a folder."""
    (folder / "text.txt").write_text(TEXT)
    (folder / "few.txt").write_text("the house met .\nthe house of the people\n")
    (folder / "words.txt").write_text("the\nhouse\n")
    experiment = EXPERIMENT.format(steps=2).replace('"corpus"', repr(str(folder / "corpus")))
    for old, new in (("evaluation.every = 40", "evaluation.every = 1"), ("negatives = 64", "negatives = 16")):
        experiment = experiment.replace(old, new)
    (folder / "small.py").write_text(experiment)
    made(folder, "prepare", "text.txt", "--out", "corpus", "--format", "lines", "--heldout-fraction", "0.2",
         "--workers", "1")  # fmt: skip
    made(folder, "pretrain", "--config", "small.py", "--workdir", "run")
    made(folder, "export", "run", "--out", "out")
    made(folder, "export", "run", "--out", "one.safetensors", "--dtype", "float16")
    (folder / "published").mkdir()
    made(folder, "export-hdf5", "out", "published/options.json", "published/weights.hdf5")
    return folder


def make_more(folder: Path) -> None:
    """Adds `tuned`, a fine-tuning, and `task`, the run of a tagger, to the things."""
    tuned = ("--data", folder / "text.txt", "--workdir", folder / "tuned", "--epochs", "0", "--workers", "1")
    made(folder, "finetune", "--from", "out", *tuned)
    (folder / "problem").mkdir()
    write_problem(folder / "problem")
    (folder / "task.py").write_text(TASK.replace("{}", 'default_config("pos")'))
    settings = overrides(folder / "problem", "seeds=(0,)", "train.epochs=1")
    made(folder, "task", "train", "--config", "task.py", "--workdir", "task", *settings)
