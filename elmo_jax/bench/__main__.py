"""Measures one part at one size in this process and prints JSON: `python -m elmo_jax.bench train/tiny --corpus DIR`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path

from elmo_jax.bench.machine import Machine
from elmo_jax.bench.parts import measure
from elmo_jax.bench.sizes import SIZES
from elmo_jax.data.corpus import Corpus
from elmo_jax.distributed.processors import divide_cpu
from elmo_jax.environment import keep_freed_memory
from elmo_jax.errors import UserError


def main() -> int:
    """Measures the part and prints its metrics; returns the exit status."""
    parser = argparse.ArgumentParser("python -m elmo_jax.bench", description=__doc__)
    parser.add_argument("name", metavar="PART/SIZE")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args()
    part, size = options.name.split("/")
    keep_freed_memory(per_thread=part == "train")  # as the commands do
    try:
        corpus = Corpus.open(options.corpus)
        if part == "train":  # as `pretrain` does
            divide_cpu(SIZES[size].model.lstm, options.rows or SIZES[size].rows)
        with contextlib.redirect_stdout(sys.stderr):  # only the metrics go to standard output
            machine = Machine(options.seconds, options.rows, options.profile)
            figures = measure(part, size, corpus, machine)
    except UserError as error:
        print(f"elmo-jax: {error}", file=sys.stderr)
        return 2
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
