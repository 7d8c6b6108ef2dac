"""Measures the machine itself next to a part: the rate of matrix products, the memory and the compilation."""

import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from elmo_jax.model.precision import Precision
from elmo_jax.version import __version__
from performance.product import ON_ACCELERATOR, own_product, product_in_process

REST_SECONDS = 0.25  # a pause after timed work, in which memory is freed, which would slow the matrix product down


class Machine:
    """The devices of this process, and the settings for measuring a part on them.

    The speed of a machine that others use as well changes from second to second. So the rate of a large matrix product
    is measured before and after every piece of timed work (`probe`), and the speed of a part is divided by the median.
    Training is measured for `seconds` at least; `rows` are those of a training batch, None for those of the size.
    """

    def __init__(self, seconds: float, rows: int | None, profile: Path | None, precision: Precision | None = None):
        self.seconds, self.rows, self.profile = seconds, rows, profile
        self.is_cpu = jax.default_backend() == "cpu"
        self.precision = precision or (Precision.FLOAT32 if self.is_cpu else Precision.BFLOAT16)
        self._rate = product_in_process() if self.is_cpu else own_product(self.precision, ON_ACCELERATOR)
        self._rates: list[float] = []
        self._compiling = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event.startswith("/jax/core/compile/"):  # tracing, lowering and the compilation by XLA
            self._compiling += duration_secs

    def probe(self) -> None:
        self._rates.append(self._rate())

    def timed(self, work: Callable[[], Any]) -> float:
        self.probe()
        started = time.perf_counter()
        jax.block_until_ready(work())
        seconds = time.perf_counter() - started
        time.sleep(REST_SECONDS)
        self.probe()
        return seconds

    def peak_memory(self) -> int:
        """Returns the peak memory so far in bytes: that of the fullest accelerator or, on a CPU, of this process."""
        if not self.is_cpu:
            stats = [device.memory_stats() or {} for device in jax.local_devices()]
            return max(int(stat.get("peak_bytes_in_use", 0)) for stat in stats)
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def numbers(self, tokens: int, seconds: float, operations: float) -> dict[str, Any]:
        """Returns the metrics that every part reports; `operations` are the model's, not those of the program."""
        matmul = statistics.median(self._rates) / 1e9
        # Only one accelerator is probed, so the rate is multiplied by their number.
        matmul *= 1 if self.is_cpu else jax.device_count()
        return {
            "tokens_per_second": tokens / seconds,
            "matmul_gflops": matmul,
            "tokens_per_second_per_matmul_gflops": tokens / seconds / matmul,
            "model_gflops": operations / seconds / 1e9,
            "share_of_matmul": operations / seconds / 1e9 / matmul,
            "matmul_gflops_best": max(self._rates) / 1e9 * (1 if self.is_cpu else jax.device_count()),
            "tokens": tokens,
            "seconds": seconds,
            "peak_memory_bytes": self.peak_memory(),
            "compile_seconds": self._compiling,
            "precision": self.precision.value,
            "devices": f"{jax.device_count()} × {jax.devices()[0].device_kind}",
            "jax": jax.__version__,
            "elmo_jax": __version__,
        }
