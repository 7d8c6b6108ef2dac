"""Measures the making of batches on one core, which is all that the host does for a step, including the negatives."""

from __future__ import annotations

import os
import time
from typing import Any

from elmo_jax.data.corpus import Corpus
from performance.machine import Machine
from performance.sizes import Size
from performance.train import host_batches

AT_LEAST_SECONDS = 3.0


def measure(size: Size, corpus: Corpus, machine: Machine) -> dict[str, Any]:
    """Returns the metrics of making batches; a token counts once, although both directions read it.

    There are no floating-point operations to count.
    """
    rows = machine.rows or (size.rows if machine.is_cpu else size.rows_of_accelerator)
    batches = host_batches(size, corpus, corpus.spellings(), rows, devices=1)
    machine.probe()
    if hasattr(os, "sched_setaffinity"):  # restricts this thread alone, and not those that JAX has started
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    next(batches)
    made, started = 0, time.perf_counter()
    while (seconds := time.perf_counter() - started) < min(AT_LEAST_SECONDS, machine.seconds) or not made:
        next(batches)
        made += 1
    machine.probe()
    return machine.figures(made * rows * 20, seconds, operations=0) | {"rows": rows}
