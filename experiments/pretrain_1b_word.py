"""The paper's own biLM (93.6 M parameters, 500.7 M with its 793,471-word softmax) on 1 Billion Word.

    elmo-jax prepare tfds:lm1b --out data/1b_word --vocab vocab-2016-09-10.txt --heldout-fraction 0.01
    elmo-jax pretrain --config experiments/pretrain_1b_word.py --workdir runs/1b_word

The vocabulary file is the one published with the original's code; without it, `--vocab-size 793471` takes the most
frequent words. Preparing `tfds:lm1b` needs `pip install tensorflow` once, as TFDS's own builder of it does; or download
the benchmark and prepare its folder of tokenised shards, which needs nothing.

hardware  the original: 3 × GTX 1080, two weeks for 10 epochs, 128 rows on each
time      not measured here: neither the corpus nor an accelerator was at hand
figure    39.7 held-out perplexity after 10 epochs (the original's; average of both directions)
measured  only that the program builds at this size, with the original's parameter counts
"""

from ml_collections import ConfigDict

from elmo_jax.config import default_config


def get_config() -> ConfigDict:
    """The experiment: the defaults are the paper's, in float32 and 3 × 128 rows."""
    config = default_config()
    config.data.corpus = "data/1b_word"
    config.train.epochs = 10.0
    return config
