"""Pretrains the published small biLM (13.6 M parameters without softmax) on your own text or on 1 Billion Word.

    elmo-jax prepare YOUR_TEXT_FOLDER --out data/small --vocab-size 100000
    elmo-jax pretrain --config experiments/pretrain_small.py --workdir runs/small

hardware  one accelerator with 128 rows; for several, set train.batch_size to 128 × the number of devices
time      2,760 tokens/s on 2 CPU cores (30 steps on the State of the Union addresses); no accelerator was available
result    none, since no full training was run
measured  the speed, and that it learns: 21,858 -> 6,517 held-out perplexity in those 30 steps
"""

from ml_collections import ConfigDict

from elmo_jax.config import default_config


def get_config() -> ConfigDict:
    config = default_config()
    config.model.char_cnn.highways = 1
    config.model.lstm.cells = 1024
    config.model.lstm.projection = 128
    config.data.corpus = "data/small"
    config.train.batch_size = 128
    config.train.epochs = 10.0
    config.train.carry = "block"
    config.train.precision = "auto"
    return config
