"""Textual entailment on SNLI as in the paper: accuracy on the test set 88.7 ± 0.17 with ELMo, 88.0 without.

SNLI is that of `experiments/task_snli.py`, and the word vectors those of nlp.stanford.edu/projects/glove (PDDL). The
command is in `README.md`.

The biLM is better after one epoch of fine-tuning on the training sentences (`elmo-jax finetune`). The baseline has
`--config.model.attention_dropout=0.0 --config.model.matrix_penalty=0.0`.
"""

from ml_collections import ConfigDict

from elmo_jax.tasks.registry import default_config


def get_config() -> ConfigDict:
    """Returns the config of the paper's supplement; the limits of length and patience are the original ESIM's."""
    config = default_config("snli")
    config.data.train = "snli_1.0/snli_1.0_train.jsonl"
    config.data.dev = "snli_1.0/snli_1.0_dev.jsonl"
    config.data.test = "snli_1.0/snli_1.0_test.jsonl"
    config.word_vectors.path = "glove.840B.300d.zip"
    config.word_vectors.trainable = False
    config.word_vectors.lowercase = "never"
    config.elmo.where = "both"
    config.elmo.regularization = 1e-3
    config.elmo.layer_norm = "tokens"
    config.elmo.dropout = 0.0  # the variational dropout of the LSTM's input is ELMo's too
    config.elmo.precompute = False  # all layers of all sentences would take more than 30 GB
    config.seeds = (0, 1, 2, 3, 4)
    config.train.max_length = 100
    config.train.patience = 7
    config.train.optimizer.learning_rate = 4e-4
    config.train.optimizer.schedule = "plateau"
    return config
