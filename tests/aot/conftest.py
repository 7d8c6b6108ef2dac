"""An experiment that compiles in seconds."""

import pytest


@pytest.fixture
def small(tmp_path):
    """Returns an experiment that compiles in a few seconds."""
    path = tmp_path / "pretrain_small_test.py"
    path.write_text(
        "from elmo_jax.config import default_config\n\n\ndef get_config():\n    config = default_config()\n"
        "    config.model.char_cnn.embedding_dim = 4\n    config.model.char_cnn.filters = ((1, 3), (2, 5), (3, 6))\n"
        "    config.model.char_cnn.highways = 1\n    config.model.lstm.cells = 11\n"
        "    config.model.lstm.projection = 7\n    config.train.negatives = 16\n    config.train.batch_size = 16\n"
        "    config.train.unroll_steps = 5\n    config.data.corpus = 'nowhere'\n    return config\n"
    )
    return path
