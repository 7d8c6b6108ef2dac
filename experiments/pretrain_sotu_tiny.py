"""Pretrains the tiny biLM on the State of the Union addresses, 2.1 M words, as `make pretrain` does.

    elmo-jax prepare sotu --out data/sotu
    elmo-jax pretrain --config experiments/pretrain_sotu_tiny.py --workdir runs/sotu_tiny

hardware  2 CPU cores
time      2 min 51 s at 10,200 tokens/s, and that of some 50 steps for the ten evaluations, which came later
result    109.5 held-out perplexity on the 20,000 tokens that are evaluated ten times (before training 21,535); on all
          held-out tokens 106.3 (forward 107.1, backward 105.5; full softmax over 21,644 words)
          on 2 cores with AVX-512 BF16, where `auto` is bfloat16: 20,600 tokens/s in 1 min 32 s, 109.8 on the 20,000
          tokens; in float32 15,850 tokens/s in 1 min 56 s, 109.6
measured  the time and the result; docs/recipes.md has the runs that chose the settings
"""

from ml_collections import ConfigDict

from elmo_jax.config import default_config


def get_config() -> ConfigDict:
    """Returns the settings, for little time. docs/results.md lists the differences from bilm-tf's."""
    config = default_config()
    config.model.char_cnn.filters = ((1, 32), (2, 32), (3, 64), (4, 128))
    config.model.char_cnn.highways = 1
    config.model.lstm.cells = 256
    config.model.lstm.projection = 64
    config.model.dropout = 0.0  # less than one epoch does not overfit
    config.data.corpus = "data/sotu"
    config.train.batch_size = 32
    config.train.unroll_steps = 20
    config.train.negatives = 512
    config.train.epochs = 0.66
    config.train.carry = "block"
    config.train.precision = "auto"
    config.train.log_every = 100
    config.train.optimizer.name = "adam"
    config.train.optimizer.learning_rate = 0.007
    config.train.optimizer.softmax_learning_rate = 1.5
    config.train.optimizer.initial_accumulator = 0.01
    config.train.optimizer.schedule = "warmup_cosine"
    config.train.optimizer.warmup_steps = 50
    config.evaluation.every = 225  # ten times
    config.evaluation.tokens = 20_000  # all held-out tokens would take as long as 140 steps each time
    config.evaluation.vocabulary_chunk = 256  # 256 logits per token stay in a core's cache
    config.checkpoint.every = 500
    return config
