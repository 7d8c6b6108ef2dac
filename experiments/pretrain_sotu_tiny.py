"""The tiny biLM on the State of the Union addresses."""

from ml_collections import ConfigDict

from elmo_jax.config import default_config


def get_config() -> ConfigDict:
    """The experiment."""
    config = default_config()
    config.model.char_cnn.filters = ((1, 32), (2, 32), (3, 64), (4, 128))
    config.model.char_cnn.highways = 1
    config.model.lstm.cells = 256
    config.model.lstm.projection = 64
    config.data.corpus = "data/sotu"
    config.train.batch_size = 64
    config.train.negatives = 2048
    config.train.epochs = 1.0
    config.train.log_every = 50
    config.evaluation.every = 500
    config.checkpoint.every = 500
    return config
