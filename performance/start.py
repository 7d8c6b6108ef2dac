"""Measures the time from the command `pretrain` to its first step, and from `embed` to its first vectors.

The experiment is that of `make pretrain`. Its time includes starting Python, opening the corpus, compiling, and
measuring held-out perplexity before training. A cold start is the first run on a machine. A warm start is a new run
with the compiled programs that the first run left. `embed` is run twice, and the second time is taken.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from elmo_jax.data.corpus import Corpus
from elmo_jax.errors import UserError
from elmo_jax.files import temporary_folder
from performance.machine import Machine
from performance.sizes import Size

EXPERIMENT = Path(__file__).parents[1] / "experiments" / "pretrain_sotu_tiny.py"
ROWS, UNROLL_STEPS = 32, 20  # of this experiment


def measure(size: Size, corpus: Corpus, machine: Machine) -> dict[str, Any]:
    rows = machine.rows or ROWS
    settings = {
        "data.corpus": corpus.path.absolute(),
        "train.batch_size": rows,
        "train.negatives": min(512, corpus.vocabulary_size - 1),
        "train.log_every": 1,
    }
    experiment = ["--config", str(EXPERIMENT), *(f"--config.{key}={value}" for key, value in settings.items())]
    with temporary_folder() as folder:
        machine.probe()
        cold = seconds_to_first_step(experiment, folder / "cold", folder / "programs")
        machine.probe()
        warm = seconds_to_first_step(experiment, folder / "warm", folder / "programs")
        machine.probe()
        vectors = [seconds_to_vectors(folder) for _ in range(2)][-1]
    numbers = machine.numbers(rows * UNROLL_STEPS, cold, operations=0)
    return numbers | {"rows": rows, "seconds_cold": cold, "seconds_warm": warm, "seconds_vectors": vectors}


def seconds_to_first_step(experiment: list[str], workdir: Path, cache: Path) -> float:
    """Runs the command until it reports step 1, kills it, and returns the seconds that this took."""
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    command = [sys.executable, "-m", "elmo_jax", "pretrain", *experiment, "--workdir", str(workdir)]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 1/"):
                seconds = time.perf_counter() - started
                process.send_signal(signal.SIGKILL)  # the results of the run are not needed
                return seconds
    raise UserError(f"pretrain ended with {process.returncode} before its first step")


def seconds_to_vectors(folder: Path) -> float:
    text, out = folder / "sentence.txt", folder / "vectors.hdf5"
    text.write_text("The cat sat on the mat .\n", encoding="utf-8")
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "elmo_jax", "embed", "english", str(text), str(out), "--processes", "1"]
    started = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise UserError(f"embed ended with {ended.returncode}: {ended.stderr.strip()}")
    return time.perf_counter() - started
