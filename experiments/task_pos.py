"""Parts of speech on the English Web Treebank: a BiLSTM tagger of two layers, with ELMo at its input and output.

The treebank is in the repository UniversalDependencies/UD_English-EWT on GitHub (CC BY-SA 4.0). From the folder that
holds it, for about an hour on 2 cores:

    elmo-jax task train --config experiments/task_pos.py --workdir runs/pos --config.bilm=runs/english

`--config.bilm=` (nothing after the sign) trains the same tagger without ELMo, and `--config.elmo.layers=top` the one
whose vectors are those of the top layer.
"""

from ml_collections import ConfigDict

from elmo_jax.tasks.registry import default_config


def get_config() -> ConfigDict:
    """Returns the config."""
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
    config.elmo.layer_norm = True
    config.seeds = (0, 1, 2, 3, 4)
    config.train.batch_size = 64
    config.train.epochs = 10
    config.train.patience = 0
    config.train.optimizer.learning_rate = 3e-3
    config.train.optimizer.schedule = "warmup_cosine"
    return config
