"""Coreference in LitBank's excerpts of novels: a small span-ranking model with ELMo at its input.

LitBank is in the repository dbamman/litbank on GitHub (CC BY 4.0); its documents are in the folder `coref/conll`. From
the folder that holds it, on 2 cores:

    elmo-jax task train --config experiments/task_coref.py --workdir runs/coref --config.bilm=runs/english

`--config.bilm=` (nothing after the sign) trains the same model without ELMo. Of the 100 documents, in the order of
their names, 80 are trained on, 10 are dev and 10 are test. Entities of one mention are not counted, as in CoNLL-2012,
which has none; `--config.data.singletons=keep` counts them.

hardware  2 CPU cores
time      on one core, 75 seconds per epoch without ELMo and 92 with it, and four to seven minutes of compilation
"""

from ml_collections import ConfigDict

from elmo_jax.tasks.registry import default_config


def get_config() -> ConfigDict:
    config = default_config("coref")
    config.data.train = "litbank/coref/conll[:80]"
    config.data.dev = "litbank/coref/conll[80:90]"
    config.data.test = "litbank/coref/conll[90:]"
    config.data.singletons = "drop"
    config.word_vectors.path = "glove-6b-50d"
    config.word_vectors.trainable = False
    config.characters.embedding_dim = 8
    config.characters.filters = ((3, 30), (5, 30))
    config.characters.max_characters = 20
    config.elmo.dropout = 0.0
    config.model.units = 100
    config.model.hidden = 75
    config.model.antecedents = 100
    config.model.top_span_ratio = 0.3
    config.model.lexical_dropout = 0.4
    config.train.max_sentences = 30
    config.train.num_buckets = 3
    config.train.epochs = 25
    config.train.patience = 8
    config.train.optimizer.schedule = "staircase"
    config.train.optimizer.decay = 0.999
    return config
