"""Runs the parts of a benchmark one after another, each in a process of its own, so that peak memory is per part.

This module does not import JAX, since this process must not occupy an accelerator that the parts need.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from elmo_jax.errors import UserError
from elmo_jax.files import write_json
from performance.table import header, line

SIZES = ("tiny", "small", "original")
PARTS = ("train", "infer", "embed", "evaluate", "data", "start", "task")
TASKS = ("pos", "srl")  # what is measured in the part `task`, which has no sizes


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A benchmark and its settings.

    Attributes:
      corpus: a prepared corpus.
      sizes: some of `SIZES`, separated by commas.
      parts: some of `PARTS`, separated by commas.
      seconds: the least time in seconds that training is measured for.
      rows: the rows of a training batch; None for those of the size and the device.
      json: a file for the metrics; None for no file.
      profile: a folder for traces; None for no traces.
    """

    corpus: Path
    sizes: str
    parts: str
    seconds: float
    rows: int | None
    json: Path | None
    profile: Path | None

    def run(self) -> None:
        """Measures the parts and prints one line for each.

        Raises:
          UserError: a part or a size is unknown, the corpus does not exist, or a part failed.
        """
        sizes, parts = _chosen("--sizes", self.sizes, SIZES), _chosen("--parts", self.parts, PARTS)
        if not (self.corpus / "corpus.json").exists():
            raise UserError(
                f"{self.corpus}: not a prepared corpus; make one with: elmo-jax prepare sotu --out {self.corpus}"
            )
        sizes_of = {"start": [size for size in sizes if size == "tiny"], "task": TASKS}
        names = [f"{part}/{size}" for part in parts for size in sizes_of.get(part, sizes)]
        if not names:
            raise UserError("--parts: start is measured at the tiny size only; add tiny to --sizes")
        found: dict[str, Any] = {}
        for name in names:
            found[name] = self._measured(name)
            if len(found) == 1:
                print(header(found[name]))
            print(line(name, found[name]), flush=True)
            if self.json:  # written after each part, so that a later failure loses nothing
                write_json(self.json, found)

    def _measured(self, name: str) -> dict[str, Any]:
        """Measures one part in a process of its own, and returns its metrics."""
        arguments = [name, "--corpus", self.corpus, "--seconds", self.seconds]
        if self.rows is not None:
            arguments += ["--rows", self.rows]
        if self.profile:
            arguments += ["--profile", self.profile / name.replace("/", "_")]
        command = [sys.executable, "-m", "performance.parts", *map(str, arguments)]
        environment = os.environ | {"TQDM_DISABLE": "1"}  # no progress bars between the lines of the table
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
        if ended.returncode:
            told = "see the line above" if ended.returncode == 2 else f"its process ended with {ended.returncode}"
            raise UserError(f"{name}: could not be measured; {told}")
        metrics: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return metrics


def _chosen(option: str, text: str, known: tuple[str, ...]) -> list[str]:
    chosen = text.split(",")
    for name in chosen:
        if name not in known:
            raise UserError(f"{option}: {name!r} is none of {', '.join(known)}")
    return [name for name in known if name in chosen]
