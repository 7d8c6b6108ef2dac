"""Named entities of WNUT-17 (Twitter and the like): the paper's biLSTM-CRF in a small size, with ELMo at its input.

The files `wnut17train.conll`, `emerging.dev.conll` and `emerging.test.annotated` are in the repository
leondz/emerging_entities_17 on GitHub (CC BY 4.0). From the folder that holds it, on 2 cores:

    elmo-jax task train --config experiments/task_ner.py --workdir runs/ner --config.bilm=runs/english

`--config.bilm=` (nothing after the sign) trains the same tagger without ELMo; docs/tasks.md names other files.
"""

from ml_collections import ConfigDict

from elmo_jax.tasks.registry import default_config


def get_config() -> ConfigDict:
    config = default_config("ner")
    config.data.train = "emerging_entities_17/wnut17train.conll"
    config.data.dev = "emerging_entities_17/emerging.dev.conll"
    config.data.test = "emerging_entities_17/emerging.test.annotated"
    config.word_vectors.path = "glove-6b-50d"
    config.characters.filters = ((3, 64),)
    config.characters.max_characters = 20
    config.elmo.regularization = 0.1
    config.elmo.dropout = 0.0
    config.model.layers = (100, 50)  # half the paper's sizes
    config.seeds = (0, 1, 2, 3, 4)
    config.train.epochs = 15
    config.train.patience = 5
    config.train.optimizer.learning_rate = 3e-3
    config.train.optimizer.schedule = "warmup_cosine"
    return config
