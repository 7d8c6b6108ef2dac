r"""Continues the training of the packaged biLM on its own text; the result takes its place in the package.

With the corpus of `pretrain_english.py`:

    elmo-jax finetune --from english --data data/english --config experiments/finetune_english.py --workdir runs/english
    python -m tools.ship runs/english english

hardware  2 CPU cores with AVX-512 BF16
time      112 minutes of training, half of them next to other jobs (5,600 tokens/s without them, in bfloat16), and 4
          minutes to fit a softmax
result    94.7 held-out perplexity on 20,000 tokens, 116.9 with the fitted softmax before training. docs/results.md has
          the perplexity per source
measured  all of it, in launches with other values of --config.train.steps: 30000 up to step 4,029, where the learning
          rate had hardly fallen, 16300 up to step 9,653, and then 14600. The held-out documents are those of
          `pretrain_english.py`; the earlier file may have read some of them, but none of the five novels

The file in the package was made in three parts, each of which lost the softmax of the one before:

    tokens  text
    12.7 M  `pretrain_english.py`
    21.7 M  all novels and a quarter of the other sources, with a learning rate of 0.002 (fingerprint d8337cff3911)
    18.7 M  all sources and answers.txt, as here (fingerprint 49f4ba585a8c)
"""

from pathlib import Path

from ml_collections import ConfigDict

from elmo_jax.config_file import load_file


def get_config() -> ConfigDict:
    """Returns the settings of `pretrain_english.py` with half the learning rate, for 0.44 epochs."""
    config = load_file(Path(__file__).with_name("pretrain_english.py"))
    config.data.corpus = ""
    config.train.steps = 14_600
    config.train.optimizer.learning_rate = 0.002
    config.train.optimizer.warmup_steps = 300
    config.evaluation.every = 4000
    config.evaluation.tokens = 20_000
    config.finetune.evaluations = 0
    config.finetune.patience = 0
    config.finetune.softmax_epochs = 0.06
    config.checkpoint.every = 500
    return config
