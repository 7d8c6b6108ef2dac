r"""Continues the training of the packaged biLM on its own text; the result takes its place in the package.

With the corpus of `pretrain_english.py`:

    elmo-jax finetune --from english --data data/english --config experiments/finetune_english.py --workdir runs/english
    python -m tools.ship runs/english english

hardware  2 CPU cores with AMX
time      about 125 minutes of training, mostly next to other jobs (7,600 tokens/s without them, in bfloat16), and 3
          minutes to fit a softmax
result    87.4 held-out perplexity on 20,000 tokens, 114.4 with the fitted softmax before training. docs/recipes.md has
          the perplexity per source
measured  all of it, in two runs; docs/recipes.md has their steps
"""

from pathlib import Path

from ml_collections import ConfigDict

from elmo_jax.config_file import load_file


def get_config() -> ConfigDict:
    """Returns the settings of `pretrain_english.py` with half the learning rate, for 1.05 epochs."""
    config = load_file(Path(__file__).with_name("pretrain_english.py"))
    config.data.corpus = ""
    config.train.steps = 35_500
    config.train.optimizer.learning_rate = 0.002
    config.train.optimizer.warmup_steps = 300
    config.evaluation.every = 4000
    config.evaluation.tokens = 20_000
    config.finetune.evaluations = 0
    config.finetune.patience = 0
    config.finetune.softmax_epochs = 0.06
    config.checkpoint.every = 500
    return config
