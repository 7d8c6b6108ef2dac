"""The command `elmo-jax bench`: each part in a process of its own, so that its peak memory is its own; then a table.

Imports no JAX: on an accelerator this process must not hold the memory that the parts need.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from elmo_jax.bench.table import header, line
from elmo_jax.errors import UserError

SIZES = ("tiny", "small", "original")
PARTS = ("train", "infer", "evaluate", "data", "start")
Commands = argparse._SubParsersAction


def add_command(commands: Commands[argparse.ArgumentParser]) -> None:
    """Adds `bench`."""
    bench = commands.add_parser(
        "bench",
        help="how fast this machine is",
        description="Measures training, inference, evaluation, the making of batches and the start of a training, at"
        " the tiny, the small and the original size, on the devices that are there.",
        allow_abbrev=False,
    )
    bench.add_argument(
        "--corpus", type=Path, default=Path("data/sotu"), metavar="DIR", help="a prepared text (%(default)s)"
    )
    bench.add_argument("--sizes", default=",".join(SIZES), metavar="S,S", help="of the biLM (%(default)s)")
    bench.add_argument("--parts", default=",".join(PARTS), metavar="P,P", help="what is measured (%(default)s)")
    bench.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    bench.add_argument("--profile", type=Path, metavar="DIR", help="write a trace of each part, for TensorBoard")
    bench.add_argument(
        "--seconds", type=float, default=15.0, metavar="S", help="that training is timed for at least (%(default)s)"
    )
    bench.add_argument("--rows", type=int, metavar="N", help="rows of a training batch (default: by size and device)")
    bench.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the parts one after another and prints a line for each.

    Raises:
      UserError: an unknown part or size, no corpus, or a part that failed.
    """
    sizes, parts = _chosen("--sizes", options.sizes, SIZES), _chosen("--parts", options.parts, PARTS)
    if not (options.corpus / "corpus.json").exists():
        raise UserError(
            f"{options.corpus}: not a prepared corpus; make one with: elmo-jax prepare sotu --out {options.corpus}"
        )
    names = [f"{part}/{size}" for part in parts for size in sizes if part != "start" or size == "tiny"]
    if not names:
        raise UserError("--parts: start is measured at the tiny size only; add tiny to --sizes")
    found: dict[str, Any] = {}
    for name in names:
        found[name] = _measured(name, options)
        if len(found) == 1:
            print(header(found[name]))
        print(line(name, found[name]), flush=True)
        if options.json:  # what is measured stays, whatever comes
            options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def _chosen(option: str, text: str, known: tuple[str, ...]) -> list[str]:
    chosen = text.split(",")
    for name in chosen:
        if name not in known:
            raise UserError(f"{option}: {name!r} is none of {', '.join(known)}")
    return [name for name in known if name in chosen]


def _measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one part, from a process of its own."""
    arguments = [name, "--corpus", options.corpus, "--seconds", options.seconds]
    if options.rows:
        arguments += ["--rows", options.rows]
    if options.profile:
        arguments += ["--profile", options.profile / name.replace("/", "_")]
    command = [sys.executable, "-m", "elmo_jax.bench", *map(str, arguments)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        told = "see the line above" if ended.returncode == 2 else f"its process ended with {ended.returncode}"
        raise UserError(f"{name}: could not be measured; {told}")
    figures: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return figures
