"""Pretrains the paper's biLM (93.6 M parameters, 500.7 M with its softmax of 793,471 words) on 1 Billion Word.

    elmo-jax prepare tfds:lm1b --out data/1b_word --vocab vocab-2016-09-10.txt --heldout-fraction 0.01
    elmo-jax pretrain --config experiments/pretrain_1b_word.py --workdir runs/1b_word

The vocabulary file was published with the original code; without it, `--vocab-size 793471` takes the most frequent
words. Preparing `tfds:lm1b` needs `pip install tensorflow` once, since TFDS's builder does; or download the
benchmark and prepare its folder of tokenized shards, which needs no further package.

hardware  the original: 3 × GTX 1080, two weeks for 10 epochs, 128 rows on each
time      not measured, since the corpus was not available
result    39.7 held-out perplexity after 10 epochs (the original's, average of both directions)
measured  231,000 tokens/s with these 384 rows on one H200, and 517,000 with 4,096 (docs/speed.md); on other text
"""

from ml_collections import ConfigDict

from elmo_jax.config import default_config


def get_config() -> ConfigDict:
    """Returns the settings; the defaults are the paper's, in float32 with 3 × 128 rows."""
    config = default_config()
    config.data.corpus = "data/1b_word"
    config.train.epochs = 10.0
    config.train.precision = "auto"
    return config
