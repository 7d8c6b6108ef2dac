"""The rate of a large matrix product, the yardstick that figures are divided by.

On a CPU a process of its own measures it, `python -m elmo_jax.bench.product`: a plain one, as that beside which the
other trainers' figures were taken, so that nothing the measured part does to its own process (what memory it keeps,
what it still frees) changes the yardstick. An accelerator belongs to one process, which measures both.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import jax

from elmo_jax.model.precision import Precision

ON_CPU = (2048, 1024, 4096)  # the product whose rate the figures of the other trainers were divided by
ON_ACCELERATOR = (8192, 8192, 8192)  # one that fills it


def own_product(precision: Precision, shape: tuple[int, int, int]) -> Callable[[], float]:
    """A function that multiplies [m, k] with [k, n] on this process's first device and returns operations a second."""
    m, k, n = shape
    keys = jax.random.split(jax.random.key(0))
    operands = [
        precision.operand(jax.random.normal(key, size)) for key, size in zip(keys, ((m, k), (k, n)), strict=True)
    ]
    product = jax.jit(precision.product)
    jax.block_until_ready(product(*operands))

    def rate() -> float:
        started = time.perf_counter()
        jax.block_until_ready(product(*operands))
        return 2 * m * k * n / (time.perf_counter() - started)

    return rate


def product_beside() -> Callable[[], float]:
    """The same by a process of its own, which ends with this one."""
    command = [sys.executable, "-m", "elmo_jax.bench.product"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert process.stdin and process.stdout
    asked, answers = process.stdin, process.stdout

    def rate() -> float:
        asked.write("\n")
        return float(answers.readline())

    rate()  # once it has started
    return rate


def main() -> None:
    """Answers every line of the standard input with a rate."""
    rate = own_product(Precision.FLOAT32, ON_CPU)
    for _ in sys.stdin:
        print(rate(), flush=True)


if __name__ == "__main__":
    main()
