"""Question answering on a part of SQuAD 1.1: a small BiDAF with self-attention, and ELMo at its input and output.

SQuAD's `dev-v1.1.json` is in the repository rajpurkar/SQuAD-explorer on GitHub (CC BY-SA 4.0). The articles of this one
file are divided, so that what is trained on is small enough for 2 cores. From the folder that holds it:

    elmo-jax task train --config experiments/task_squad.py --workdir runs/squad --config.bilm=runs/english

`--config.bilm=` (nothing after the sign) trains the same model without ELMo. The whole training set is
`--config.data.train=train-v1.1.json` with `--config.data.dev=dev-v1.1.json --config.data.test=`.

hardware  2 CPU cores
time      for 4,000 questions on one core, one minute per epoch without ELMo and two with it at both places
"""

from ml_collections import ConfigDict

from elmo_jax.tasks.registry import default_config

DEV = ("Super_Bowl_50", "Teacher", "United_Methodist_Church", "University_of_Chicago")
TEST = ("Victoria_(Australia)", "Victoria_and_Albert_Museum", "Warsaw", "Yuan_dynasty")


def get_config() -> ConfigDict:
    config = default_config("squad")
    config.data.train = f"dev-v1.1.json[not {';'.join(DEV + TEST)}]"
    config.data.dev = f"dev-v1.1.json[{';'.join(DEV)}]"
    config.data.test = f"dev-v1.1.json[{';'.join(TEST)}]"
    config.word_vectors.path = "glove-6b-50d"
    config.word_vectors.trainable = False
    config.characters.embedding_dim = 16
    config.characters.filters = ((5, 40),)
    config.characters.max_characters = 14
    config.characters.initial = "narrow"
    config.characters.dropout = 0.2
    config.elmo.where = "both"
    config.model.units = 45
    config.train.batch_size = 32
    config.train.max_length = 250
    config.train.epochs = 10
    config.train.patience = 3
    config.train.optimizer.learning_rate = 2e-3
    config.train.optimizer.ema = 0.99
    return config
