"""Sentiment in five classes as in the paper: accuracy on the test set 54.7 ± 0.5 with ELMo, 51.4 without.

The trees are those of `experiments/task_sst.py`, and the word vectors those of nlp.stanford.edu/projects/glove (PDDL).
The command is in `README.md`.

The baseline has `--config.model.input_dropout=0.25`. AllenNLP's output layers, which have two thirds of its 41 million
parameters, are `--config.model.output=maxout`.
"""

from ml_collections import ConfigDict

from elmo_jax.tasks.registry import default_config


def get_config() -> ConfigDict:
    """Returns the config: the training of the paper's supplement, and AllenNLP's sizes."""
    config = default_config("sst")
    config.data.train = "trees/train.txt"
    config.data.dev = "trees/dev.txt"
    config.data.test = "trees/test.txt"
    config.word_vectors.path = "glove.840B.300d.zip"
    config.word_vectors.trainable = False
    config.word_vectors.lowercase = "never"
    config.elmo.where = "both"
    config.elmo.regularization = 1e-3
    config.elmo.dropout = 0.0  # the dropout of the input is ELMo's too
    config.seeds = (0, 1, 2, 3, 4)
    config.train.batch_size = 100
    config.train.epochs = 40
    config.train.patience = 5
    config.train.optimizer.learning_rate = 1e-4
    return config
