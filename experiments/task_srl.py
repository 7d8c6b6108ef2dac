"""Semantic roles of PropBank on the English Web Treebank: four highway LSTM layers, with ELMo at their input.

The annotation is in the repository propbank/propbank-release on GitHub (CC BY-SA 4.0), under `data/google/ewt`, without
words: its script `map_all_to_conll.py` fills in those of the treebank (LDC2012T13; UD_English-EWT has the same text).
Join the resulting `.gold_conll` files of each part of the treebank's division into one. From the folder that holds
them, on 2 cores:

    elmo-jax task train --config experiments/task_srl.py --workdir runs/srl --config.bilm=runs/english

`--config.bilm=` (nothing after the sign) trains the same model without ELMo, and
`--config.data.train_fraction=0.25` on a quarter of the predicates.

hardware  2 CPU cores
time      for a quarter of the predicates on one core, 34 seconds per epoch without ELMo and 52 with it
"""

from ml_collections import ConfigDict

from elmo_jax.tasks.registry import default_config


def get_config() -> ConfigDict:
    config = default_config("srl")
    config.data.train = "ewt_propbank_train.gold_conll"
    config.data.dev = "ewt_propbank_dev.gold_conll"
    config.data.test = "ewt_propbank_test.gold_conll"
    config.data.format = "propbank"
    config.word_vectors.path = "glove-6b-50d"
    config.elmo.regularization = 1e-3
    config.elmo.dropout = 0.1
    config.model.flag_dim = 50
    config.model.layers = 4
    config.model.units = 128
    config.train.batch_size = 80
    config.train.max_length = 80
    config.train.epochs = 10
    config.train.patience = 3
    config.train.optimizer.learning_rate = 3e-3
    config.train.optimizer.clip_norm = 1.0
    config.train.optimizer.schedule = "warmup_cosine"
    return config
