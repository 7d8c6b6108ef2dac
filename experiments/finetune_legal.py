r"""Fine-tunes the tiny biLM of `pretrain_sotu_tiny.py` on software licences, as `make finetune` does.

    pip install --no-deps "licensedcode-data>=32.1,<33"
    python experiments/licenses.py data/licenses
    elmo-jax finetune --from runs/sotu_tiny --data data/licenses --format raw \
        --config experiments/finetune_legal.py --workdir runs/legal

hardware  2 CPU cores
time      3 min 21 s at 12,400 tokens/s, 4 min 35 s with the evaluations, 5 min in all
result    345.2 -> 32.2 held-out perplexity on the licences (forward 32.4, backward 32.0; over 21,644 words,
          15.2% of the targets <UNK>), and 106.3 -> 362.0 on the speeches, which shows what is forgotten
measured  the time and the result, in one run; learning rates were not searched
"""

from ml_collections import ConfigDict

from elmo_jax.config import default_config


def get_config() -> ConfigDict:
    """Returns the settings: one epoch with about a third of the learning rate of the pretraining."""
    config = default_config()
    config.model.dropout = 0.0  # one epoch does not overfit
    config.train.batch_size = 64
    config.train.unroll_steps = 20
    config.train.negatives = 2048
    config.train.epochs = 1.0
    config.train.carry = "block"
    config.train.precision = "auto"
    config.train.log_every = 50
    config.train.optimizer.name = "adam"
    config.train.optimizer.learning_rate = 0.0025
    config.train.optimizer.softmax_learning_rate = 0.25
    config.train.optimizer.initial_accumulator = 0.1
    config.train.optimizer.schedule = "warmup_cosine"
    config.train.optimizer.warmup_steps = 50
    config.checkpoint.every = 250
    config.finetune.evaluations = 2
    return config
