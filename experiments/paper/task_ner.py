"""Named entities of CoNLL-2003 as in the paper: F1 on the test set 92.22 ± 0.10 with ELMo, 90.15 without.

CoNLL-2003 is made from the Reuters corpus (RCV1, from NIST); the SENNA vectors come with SENNA 3.0, its words and its
numbers joined line by line into `senna.txt`. The command is in `README.md`.
"""

from ml_collections import ConfigDict

from elmo_jax.tasks.registry import default_config


def get_config() -> ConfigDict:
    """Returns the config; what the paper's supplement does not give is AllenNLP's."""
    config = default_config("ner")
    config.data.train = "conll2003/eng.train"
    config.data.dev = "conll2003/eng.testa"
    config.data.test = "conll2003/eng.testb"
    config.word_vectors.path = "senna.txt"
    config.word_vectors.digits = "zero"
    config.characters.filters = ((3, 128),)
    config.elmo.regularization = 0.1
    config.elmo.dropout = 0.0  # the dropout of the LSTM's input is ELMo's too
    config.seeds = (0, 1, 2, 3, 4)
    config.train.batch_size = 64
    config.train.epochs = 75
    config.train.patience = 25
    return config
