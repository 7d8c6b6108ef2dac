r"""Pretrains the paper's biLM (93.6 M parameters, 500.7 M with its softmax of 793,471 words) on 1 Billion Word.

    elmo-jax prepare tfds:lm1b --heldout tfds:lm1b:test --out data/1b_word --vocab vocab-2016-09-10.txt
    elmo-jax pretrain --config experiments/pretrain_1b_word.py --workdir runs/1b_word

The vocabulary file was published with the original code; without it, `--vocab-size 793471` takes the most frequent
words. `tfds:lm1b:test` is the benchmark's own held-out part. Preparing `tfds:lm1b` needs `pip install tensorflow` once,
since TFDS's builder does; or download the benchmark, whose two folders need no further package:

    elmo-jax prepare training-monolingual.tokenized.shuffled --heldout heldout-monolingual.tokenized.shuffled \
        --format lines --out data/1b_word --vocab vocab-2016-09-10.txt

hardware  the original: 3 × GTX 1080, two weeks for 10 epochs, 128 rows on each
time      not measured, since the corpus was not available
result    not measured; the original's perplexity after 10 epochs is 39.7 on the benchmark's held-out part, the average
          of both directions
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
