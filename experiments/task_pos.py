"""Trains a tagger of parts of speech on the English Web Treebank: one BiLSTM layer, ELMo at its input and output.

The treebank is in the repository UniversalDependencies/UD_English-EWT on GitHub (CC BY-SA 4.0). This command, run in
the folder of the repository's copy, takes about an hour on 2 cores:

    elmo-jax task train --config experiments/task_pos.py --workdir runs/pos --config.bilm=runs/english

`--config.bilm=`, with nothing after the equals sign, trains the same tagger without ELMo, and
`--config.elmo.layers=top` trains the one with the vectors of the top layer.
"""

from ml_collections import ConfigDict

from elmo_jax.tasks.registry import default_config


def get_config() -> ConfigDict:
    config = default_config("pos")
    config.data.train = "UD_English-EWT/en_ewt-ud-train.conllu"
    config.data.dev = "UD_English-EWT/en_ewt-ud-dev.conllu"
    config.data.test = "UD_English-EWT/en_ewt-ud-test.conllu"
    config.word_vectors.dim = 100
    config.word_vectors.min_count = 2
    config.characters.filters = ((3, 64),)
    config.characters.max_characters = 20
    config.elmo.where = "both"
    config.elmo.regularization = 1e-3
    config.seeds = (0, 1, 2, 3, 4)
    config.train.batch_size = 64
    config.train.epochs = 10
    config.train.patience = 0
    config.train.optimizer.learning_rate = 3e-3
    config.train.optimizer.schedule = "warmup_cosine"
    return config
