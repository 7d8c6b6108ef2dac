"""The biLM of `pretrain_fiction.py` fine-tuned on sentences of biomedical papers, 4.6 M words.

    git clone https://github.com/cambridgeltl/MTL-Bioinformatics-2016
    awk -F '\\t' 'NF {printf "%s ", $1; next} {print ""}' MTL-Bioinformatics-2016/data/*/train.tsv > biomedical.txt
    elmo-jax finetune --from runs/fiction --data biomedical.txt --format lines \\
        --config experiments/finetune_biomedical.py --workdir runs/biomedical

hardware  2 CPU cores
time      34 minutes beside other jobs; 9,700 tokens/s at the end, when there were none
figure    262.3 -> 23.8 held-out perplexity of the papers (forward 23.6, backward 24.1; over 50,000 words, 22.5% of the
          targets <UNK>), and 83.4 -> 441.9 of the novels: so much is forgotten
measured  the figures, from a copy of that text, in one run that was stopped and went on; no rate was searched for
"""

from ml_collections import ConfigDict

from elmo_jax.config import default_config


def get_config() -> ConfigDict:
    """The experiment: one epoch, with half the rate of the pretraining."""
    config = default_config()
    config.model.dropout = 0.0  # one epoch does not overfit
    config.train.batch_size = 64
    config.train.unroll_steps = 20
    config.train.negatives = 2048
    config.train.epochs = 1.0
    config.train.carry = "block"
    config.train.optimizer.name = "adam"
    config.train.optimizer.learning_rate = 0.0015
    config.train.optimizer.softmax_learning_rate = 0.25
    config.train.optimizer.initial_accumulator = 0.1
    config.train.optimizer.schedule = "warmup_cosine"
    config.train.optimizer.warmup_steps = 100
    config.checkpoint.every = 1000
    return config
