"""From the command `pretrain` to its first step: Python, the corpus, compilation, the held-out figure before training.

Cold is the first run on a machine. Warm is a new run with the programs that the first one left in its
`compilation_cache`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from elmo_jax.bench.machine import Machine
from elmo_jax.bench.sizes import Size
from elmo_jax.data.corpus import Corpus
from elmo_jax.errors import UserError
from elmo_jax.settings import to_dict

EXPERIMENT = '''\
"""Written by elmo-jax bench."""

import json

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The size, to be stopped after its first step."""
    return ConfigDict(json.loads({config!r}))
'''


def measure(size: Size, corpus: Corpus, machine: Machine) -> dict[str, Any]:
    """Seconds to the first step, cold and warm; `tokens_per_second` is that of the cold start."""
    rows = machine.rows or size.rows
    config = to_dict(size.config(rows, machine.precision.value, str(corpus.path.absolute())))
    config["train"] |= {"log_every": 1, "negatives": min(size.negatives, corpus.vocabulary_size - 1)}
    with tempfile.TemporaryDirectory(prefix="elmo-jax-bench-") as folder:
        experiment = Path(folder) / "experiment.py"
        experiment.write_text(EXPERIMENT.format(config=json.dumps(config)))
        machine.probe()
        cold = seconds_to_first_step(experiment, Path(folder) / "cold", None)
        machine.probe()
        warm = seconds_to_first_step(experiment, Path(folder) / "warm", Path(folder) / "cold" / "compilation_cache")
        machine.probe()
    figures = machine.figures(rows * config["train"]["unroll_steps"], cold, operations=0)
    return figures | {"rows": rows, "seconds_cold": cold, "seconds_warm": warm}


def seconds_to_first_step(experiment: Path, workdir: Path, cache: Path | None) -> float:
    """Runs the command until it reports step 1, then stops it.

    Args:
      experiment: reports every step.
      workdir: of the run.
      cache: compiled programs to begin with; None: the workdir's own, which is empty.
    """
    environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    if cache is not None:
        environment |= {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, "-m", "elmo_jax", "pretrain", "--config", str(experiment), "--workdir", str(workdir)]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 1/"):
                seconds = time.perf_counter() - started
                process.send_signal(signal.SIGKILL)  # nothing of the run is wanted
                return seconds
    raise UserError(f"pretrain ended with {process.returncode} before its first step")
