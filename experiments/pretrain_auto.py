"""Pretrains a biLM whose size and number of epochs fit the corpus, for a laptop or one GPU.

    elmo-jax prepare YOUR_TEXT_FOLDER --out data/mine
    elmo-jax pretrain --config experiments/pretrain_auto.py --workdir runs/mine --config.data.corpus=data/mine

A larger biLM is worth its time only if there is more text: on 0.8 M tokens, 5.4 M parameters end 5% below 3.0 M (see
docs/recipes.md). So the size grows with the text, and a small text is read several times:

    tokens of the text   biLM of                    epochs   hours on 2 cores, at its speed
    under 10 M           `pretrain_sotu_tiny.py`    5 to 1   0.3 to 0.5, at 10,200 tokens/s
    10 to 100 M          `pretrain_english.py`      1        1 to 9, at 3,100 tokens/s
    over 100 M           `pretrain_small.py`        1        10 and more, at 2,760 tokens/s; better on a GPU

hardware  2 CPU cores, or one GPU
time      above, computed from the measured speeds
result    none of a whole run; the test of the experiments trains a few steps of each size
measured  the speeds, by the runs of these experiments
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict


def get_config(tokens: int) -> ConfigDict:
    """Returns the settings for a training text of so many tokens."""
    sizes = ((10_000_000, "sotu_tiny"), (100_000_000, "english"))
    size = next((name for most, name in sizes if tokens < most), "small")
    config: ConfigDict = runpy.run_path(str(Path(__file__).with_name(f"pretrain_{size}.py")))["get_config"]()
    config.data.corpus = ""  # the one that the command names
    config.train.epochs = min(5.0, max(1.0, 10_000_000 / tokens))
    config.model.dropout = 0.1 if config.train.epochs > 2 else 0.0
    steps = tokens * config.train.epochs / (config.train.batch_size * config.train.unroll_steps)
    if config.train.optimizer.schedule != "constant":
        config.train.optimizer.warmup_steps = int(min(500, steps / 20))
    config.evaluation.every = max(1, int(steps / 10))
    config.evaluation.tokens = 20_000
    return config
