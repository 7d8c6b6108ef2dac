"""Measures the rate of a large matrix product, by which the speeds of the parts are divided.

On a CPU, a separate process measures it (`python -m performance.product`), so that the rate does not depend on
what the measured part does to its own process, such as the memory that it keeps or still frees. The metrics of the
original trainers were divided by the rate in such a plain process as well. An accelerator can be used by one process
only, which measures both.
"""

import subprocess
import sys
import time
from collections.abc import Callable

import jax

from elmo_jax.model.precision import Precision

ON_CPU = (2048, 1024, 4096)  # the shape of the product by whose rate the original trainers' metrics were divided
ON_ACCELERATOR = (8192, 8192, 8192)  # large enough to keep an accelerator busy


def own_product(precision: Precision, shape: tuple[int, int, int]) -> Callable[[], float]:
    """Returns a function that multiplies [m, k] by [k, n], and returns the rate in operations per second."""
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


def product_in_process() -> Callable[[], float]:
    command = [sys.executable, "-m", "performance.product"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert process.stdin and process.stdout
    asked, answers = process.stdin, process.stdout

    def rate() -> float:
        asked.write("\n")
        return float(answers.readline())

    rate()  # waits until the process has started
    return rate


def main() -> None:
    rate = own_product(Precision.FLOAT32, ON_CPU)
    for _ in sys.stdin:
        print(rate(), flush=True)


if __name__ == "__main__":
    main()
