"""Makes training steps on request: `python -m performance.steps data/sotu tiny per_thread`.

Every line of standard input asks for a few steps; the answer is their seconds and their processor seconds. So the steps
of several processes, whose C libraries are set differently, can be timed in turns.
"""

from __future__ import annotations

import argparse
import time

import jax

from elmo_jax.data.corpus import Corpus
from elmo_jax.distributed.cpu import divide_cpu, keep_freed_memory
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.model.precision import Precision
from performance.sizes import SIZES
from performance.train import Training


def main() -> None:
    """Starts a training and answers until standard input ends."""
    parser = argparse.ArgumentParser("python -m performance.steps", description=__doc__)
    parser.add_argument("corpus")
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("memory", choices=("returned", "shared", "per_thread"), help="how freed memory is kept")
    parser.add_argument("--steps", type=int, default=1, help="number of steps per answer (default: %(default)s)")
    options = parser.parse_args()
    if options.memory != "returned":
        keep_freed_memory(per_thread=options.memory == "per_thread")
    size = SIZES[options.size]
    divide_cpu(size.model.lstm, size.rows)
    training = Training(size, Corpus.open(options.corpus), make_mesh(), size.rows, Precision.FLOAT32)
    while True:
        try:
            input()
        except EOFError:
            return
        wall, processor = time.perf_counter(), time.process_time()
        jax.block_until_ready(training.run(options.steps))
        print(time.perf_counter() - wall, time.process_time() - processor, flush=True)


if __name__ == "__main__":
    main()
