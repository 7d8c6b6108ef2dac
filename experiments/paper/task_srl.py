"""Semantic roles of CoNLL-2012 as in the paper: F1 on the test set 84.6 with ELMo, 81.4 without.

OntoNotes 5.0 is LDC2013T19; the columns of CoNLL-2012 are made from it with the scripts of the shared task, and the
files of each part joined into one. The word vectors are those of nlp.stanford.edu/projects/glove (PDDL). The command is
in `README.md`.

AllenNLP's model has ELMo alone: `--config.word_vectors.path= --config.word_vectors.dim=0`.
"""

from ml_collections import ConfigDict

from elmo_jax.tasks.registry import default_config


def get_config() -> ConfigDict:
    """Returns the config; the loss and the clip are AllenNLP's, the dropout is the original's."""
    config = default_config("srl")
    config.data.train = "conll2012/train.gold_conll"
    config.data.dev = "conll2012/development.gold_conll"
    config.data.test = "conll2012/test.gold_conll"
    config.word_vectors.path = "glove.6B.100d.txt"
    config.elmo.regularization = 1e-3
    config.elmo.dropout = 0.1
    config.train.batch_size = 80
    config.train.max_length = 100
    config.train.epochs = 500
    config.train.patience = 200
    config.train.optimizer.name = "adadelta"
    config.train.optimizer.learning_rate = 1.0
    config.train.optimizer.eps = 1e-6
    config.train.optimizer.clip_norm = 0.0
    config.train.optimizer.clip_value = 1.0
    return config
