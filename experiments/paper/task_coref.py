"""Coreference of CoNLL-2012 as in the paper: average F1 on the test set 70.4 with ELMo, 67.2 without.

OntoNotes 5.0 is LDC2013T19; the columns of CoNLL-2012 are made from it with the scripts of the shared task, and the
files of each part joined into one. The word vectors are those of nlp.stanford.edu/projects/glove (PDDL) and Turian's of
50 numbers, from the page of the original program. The command is in `README.md`.
"""

from ml_collections import ConfigDict

from elmo_jax.tasks.registry import default_config


def get_config() -> ConfigDict:
    """Returns the config of Lee et al. (2017); 143 epochs of 2,802 documents are about its 400,000 steps."""
    config = default_config("coref")
    config.data.train = "conll2012/train.gold_conll"
    config.data.dev = "conll2012/development.gold_conll"
    config.data.test = "conll2012/test.gold_conll"
    config.word_vectors.path = "glove.840B.300d.zip,turian.50d.txt"
    config.word_vectors.trainable = False
    config.word_vectors.lowercase = "never"
    config.word_vectors.unknown = "zero"
    config.word_vectors.normalize = True
    config.characters.embedding_dim = 8
    config.characters.filters = ((3, 50), (4, 50), (5, 50))
    config.elmo.dropout = 0.0  # the lexical dropout of the model is ELMo's too
    config.train.max_sentences = 50
    config.train.epochs = 143
    config.train.patience = 0
    config.train.optimizer.schedule = "staircase"
    config.train.optimizer.decay = 0.999
    return config
