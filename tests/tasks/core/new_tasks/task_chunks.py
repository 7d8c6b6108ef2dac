"""Trains the tagger of chunks: elmo-jax task train --config task_chunks.py."""

from ml_collections import ConfigDict

from elmo_jax.tasks.registry import default_config


def get_config() -> ConfigDict:
    """Returns the settings of a small tagger."""
    config = default_config("new_tasks.chunks:TASK")
    config.data.train = config.data.dev = "chunks.txt"
    config.model.units = 9
    config.word_vectors.dim = 7
    config.train.batch_size = 3
    config.train.epochs = 60
    config.train.evaluate_every = 60
    config.train.optimizer.learning_rate = 0.05
    return config
