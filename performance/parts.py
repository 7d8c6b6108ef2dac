"""Measures one part at one size in this process, and prints JSON: `python -m performance.parts train/tiny …`."""

import argparse
import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

from elmo_jax.data.corpus import Corpus
from elmo_jax.distributed.cpu import divide_cpu, keep_freed_memory
from elmo_jax.errors import UserError
from elmo_jax.model.precision import Precision
from performance import embed, evaluate, infer, start, tasks, train
from performance.machine import Machine
from performance.sizes import SIZES

_PARTS = {
    "train": train.measure,
    "infer": infer.measure,
    "embed": embed.measure,
    "evaluate": evaluate.measure,
    "data": train.measure_batches,
    "start": start.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser("python -m performance.parts", description=__doc__)
    parser.add_argument("name", metavar="PART/SIZE[/PRECISION]")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # `make bench` itself reports it
    part, size, *precision = options.name.split("/")
    keep_freed_memory(per_thread=part == "train")  # as the commands do
    try:
        corpus = Corpus.open(options.corpus)
        if part == "train":  # as `pretrain` does
            divide_cpu(SIZES[size].model.lstm, options.rows or SIZES[size].rows)
        with contextlib.redirect_stdout(sys.stderr):  # only the metrics go to standard output
            machine = Machine(options.seconds, options.rows, options.profile, *map(Precision, precision))
            metrics = _measure(part, size, corpus, machine)
    except UserError as error:
        print(f"performance: {error}", file=sys.stderr)
        return 2
    print(json.dumps(metrics))
    return 0


def _measure(part: str, size: str, corpus: Corpus, machine: Machine) -> dict[str, Any]:
    if part == "task":
        return tasks.measure(size, corpus, machine)
    return _PARTS[part](SIZES[size], corpus, machine)


if __name__ == "__main__":
    sys.exit(main())
