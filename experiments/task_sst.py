"""Sentiment of the Stanford Sentiment Treebank in five classes: a small BCN with ELMo at its input and output.

The trees (`trees/train.txt` and so on) are `trainDevTestTrees_PTB.zip` of nlp.stanford.edu/sentiment, for research.
From the folder that holds them, on 2 cores:

    elmo-jax task train --config experiments/task_sst.py --workdir runs/sst --config.bilm=runs/english

`--config.bilm= --config.model.input_dropout=0.25` trains the same network without ELMo.
"""

from ml_collections import ConfigDict

from elmo_jax.tasks.registry import default_config


def get_config() -> ConfigDict:
    config = default_config("sst")
    config.data.train = "trees/train.txt"
    config.data.dev = "trees/dev.txt"
    config.data.test = "trees/test.txt"
    config.data.phrases = "sentences"
    config.word_vectors.path = "glove-6b-50d"
    config.elmo.where = "both"
    config.elmo.regularization = 1e-3
    config.elmo.dropout = 0.0
    config.model.pre_encoder = 100
    config.model.encoder = 100
    config.model.integrator = 100
    config.model.output_layers = (200, 100)
    config.seeds = (0, 1, 2, 3, 4)
    config.train.epochs = 10
    config.train.patience = 3
    return config
