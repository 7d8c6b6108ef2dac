"""Question answering on SQuAD 1.1 as in the paper: F1 on the test set 85.8 with ELMo, 81.1 without.

TFDS prepares SQuAD (CC BY-SA 4.0). Its test set is not public, so the metrics are those on dev: 85.6 and 80.8. The word
vectors are those of nlp.stanford.edu/projects/glove (PDDL). The command is in `README.md`.

The paper's ensemble has 11 models: `--config.seeds='(0,1,2,3,4,5,6,7,8,9,10)'`.
"""

from ml_collections import ConfigDict

from elmo_jax.tasks.registry import default_config


def get_config() -> ConfigDict:
    """Returns the config of document-qa's program with ELMo, with which the paper's models were trained."""
    config = default_config("squad")
    config.data.train = "tfds:squad:train"
    config.data.dev = "tfds:squad:validation"
    config.word_vectors.path = "glove.840B.300d.zip"
    config.word_vectors.trainable = False
    config.word_vectors.lowercase = "if_absent"
    config.word_vectors.unknown = "zero"
    config.characters.embedding_dim = 20
    config.characters.filters = ((5, 100),)
    config.characters.max_characters = 14
    config.characters.min_count = 49
    config.characters.initial = "narrow"
    config.characters.dropout = 0.2
    config.elmo.where = "both"
    config.train.batch_size = 45
    config.train.epochs = 24
    config.train.patience = 0
    config.train.evaluate_every = 1200
    config.train.optimizer.name = "adadelta"
    config.train.optimizer.learning_rate = 1.0
    config.train.optimizer.clip_norm = 0.0
    config.train.optimizer.ema = 0.999
    return config
