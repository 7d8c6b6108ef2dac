"""A small treebank, a biLM with random parameters, and the experiments that are run with them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import elmo_jax
from elmo_jax.checkpoints.layout import parameter_shapes, unflatten
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig

ROOT = Path(__file__).parents[2]
ENOUGH_SECONDS = 600  # a process that takes longer is considered to hang
CONFIG = ModelConfig(CharCNNConfig(4, ((1, 4), (2, 6)), 1), LSTMConfig(cells=9, projection=6))
# Two sentences with comments, a multiword token and an empty node.
PECULIAR = """\
# newdoc id = made-up
# text = I don't row.
1\tI\tI\tPRON\tPRP\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
2\tdo\tdo\tAUX\tVBP\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
4\trow\trow\tVERB\tVB\t_\t0\troot\t_\tSpaceAfter=No
5\t.\t.\tPUNCT\t.\t_\t4\tpunct\t_\t_

# text = You row, and I fish.
1\tYou\tyou\tPRON\tPRP\t_\t2\tnsubj\t_\t_
2\trow\trow\tVERB\tVBP\t_\t0\troot\t_\t_
3\t,\t,\tPUNCT\t,\t_\t5\tpunct\t_\t_
4\tand\tand\tCCONJ\tCC\t_\t5\tcc\t_\t_
4.1\trow\trow\tVERB\tVBP\t_\t_\t_\t2:conj\t_
5\tI\tI\tPRON\tPRP\t_\t2\tconj\t_\t_
6\tfish\tfish\tNOUN\tNN\t_\t5\torphan\t_\t_
"""
WORDS = {"NOUN": "boat lake oar shore", "VERB": "drifts sinks waits", "ADJ": "old wet green", "DET": "the a this"}


def plain_sentences(number: int, seed: int) -> str:
    """Returns sentences of a determiner, sometimes an adjective, a noun and a verb."""
    random, text = np.random.default_rng(seed), ""
    for _ in range(number):
        tags = ["DET", "ADJ", "NOUN", "VERB"] if random.random() < 0.5 else ["DET", "NOUN", "VERB"]
        for place, tag in enumerate(tags, 1):
            word = random.choice(WORDS[tag].split())
            text += f"{place}\t{word}\t{word}\t{tag}\t_\t_\t0\t_\t_\t_\n"
        text += "\n"
    return text


def make_bilm(path: Path, seed: int) -> None:
    """Writes an export with random parameters."""
    random = np.random.default_rng(seed)
    shapes = parameter_shapes(CONFIG)
    elmo_jax.export_bilm(
        path, CONFIG, unflatten({name: random.normal(0, 0.4, shape).astype("f4") for name, shape in shapes.items()})
    )


def write_folder(folder: Path) -> Path:
    """Fills a folder with the treebank and the biLM that the README's commands name, and the experiments."""
    (folder / "UD_English-EWT").mkdir()
    for seed, (part, number) in enumerate({"train": 70, "dev": 9, "test": 8}.items()):
        text = PECULIAR + "\n" + plain_sentences(number, seed)
        (folder / "UD_English-EWT" / f"en_ewt-ud-{part}.conllu").write_text(text)
    (folder / "runs").mkdir()
    make_bilm(folder / "runs" / "fiction", 0)
    (folder / "experiments").symlink_to(ROOT / "experiments")
    return folder


def run_experiment(folder: Path, *command: str) -> str:
    """Returns what `python COMMAND` prints in the folder; the processes share compiled programs."""
    settings = {
        "PYTHONPATH": str(ROOT),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",  # compiles faster
    }
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=ENOUGH_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout
