"""How fast batches are made, on one core: `python -m elmo_jax.data.benchmark data/sotu`.

Everything that the host does for a step is counted: reading blocks, both directions, distinct words, and (in the second
line) drawing negatives.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np

from elmo_jax.config import PADDING
from elmo_jax.data.batches import DistinctWords, TrainingBatches
from elmo_jax.data.corpus import Corpus


def tokens_per_second(corpus: Corpus, rows: int, negatives: int, batches: int) -> float:
    """Tokens of the text a second, each counted once though both directions read it.

    Args:
      corpus: the text.
      rows: of a batch; 20 steps each.
      negatives: drawn for each direction; 0 for none.
      batches: how many are timed.
    """
    made = TrainingBatches(
        corpus.blocks("train"),
        DistinctWords(corpus.spellings(), PADDING),
        vocabulary_size=corpus.vocabulary_size,
        rows=range(rows),
        total_rows=rows,
        position=np.zeros((rows, 2), np.int32),
        step=0,
        unroll_steps=20,
        devices=1,
        negatives=negatives,
        data_seed=0,
        draw_seed=0,
    )
    next(made)
    started = time.perf_counter()
    for _ in range(batches):
        next(made)
    return batches * rows * 20 / (time.perf_counter() - started)


def main() -> None:
    """Prints two lines."""
    parser = argparse.ArgumentParser("python -m elmo_jax.data.benchmark", description=__doc__)
    parser.add_argument("corpus", type=Path, help="a prepared corpus")
    parser.add_argument("--rows", type=int, default=128, help="rows of a batch (%(default)s)")
    parser.add_argument("--negatives", type=int, default=8192, help="of each direction (%(default)s)")
    parser.add_argument("--batches", type=int, default=500, help="how many are timed (%(default)s)")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    corpus = Corpus.open(options.corpus)
    for negatives in (0, min(options.negatives, corpus.vocabulary_size - 1)):
        speed = tokens_per_second(corpus, options.rows, negatives, options.batches)
        print(f"{speed:>12,.0f} tokens/s on one core, {options.rows} rows × 20 steps, {negatives:,} negatives")


if __name__ == "__main__":
    main()
