"""Textual entailment on 4% of SNLI: a small ESIM with ELMo at its input and output.

SNLI is `snli_1.0.zip` of nlp.stanford.edu/projects/snli (CC BY-SA 4.0). From the folder that holds it, on 2 cores:

    elmo-jax task train --config experiments/task_snli.py --workdir runs/snli --config.bilm=runs/english

`--config.bilm= --config.model.attention_dropout=0.0` trains the same network without ELMo, and
`--config.data.train_fraction=1.0` on all pairs.

hardware  2 CPU cores
time      for 20,000 pairs on one core, 36 seconds per epoch without ELMo and 100 to 150 with it
"""

from ml_collections import ConfigDict

from elmo_jax.tasks.registry import default_config


def get_config() -> ConfigDict:
    config = default_config("snli")
    config.data.train = "snli_1.0/snli_1.0_train.jsonl"
    config.data.dev = "snli_1.0/snli_1.0_dev.jsonl"
    config.data.test = "snli_1.0/snli_1.0_test.jsonl"
    config.data.train_fraction = 0.04
    config.word_vectors.path = "glove-6b-50d"
    config.elmo.where = "both"
    config.elmo.regularization = 1e-3
    config.elmo.dropout = 0.0
    config.model.encoder = 75
    config.model.projection = 75
    config.model.composition = 75
    config.model.output = 75
    config.model.dropout = 0.3
    config.model.attention_dropout = 0.3
    config.model.matrix_penalty = 0.0
    config.seeds = (0, 1, 2)
    config.train.batch_size = 64
    config.train.max_length = 60
    config.train.epochs = 8
    config.train.patience = 0
    config.train.optimizer.learning_rate = 2e-3
    config.train.optimizer.schedule = "warmup_cosine"
    return config
