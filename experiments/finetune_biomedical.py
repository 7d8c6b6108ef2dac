"""Fine-tunes the biLM of `pretrain_fiction.py` on sentences of biomedical papers, 4.6 M words.

    git clone https://github.com/cambridgeltl/MTL-Bioinformatics-2016
    awk -F '\\t' 'NF {printf "%s ", $1; next} {print ""}' MTL-Bioinformatics-2016/data/*/train.tsv > biomedical.txt
    elmo-jax finetune --from runs/fiction --data biomedical.txt --format lines \\
        --config experiments/finetune_biomedical.py --workdir runs/biomedical

hardware  2 CPU cores
time      34 minutes, while other jobs ran; 9,700 tokens/s at the end, when none did
result    262.3 -> 23.8 held-out perplexity on the papers (forward 23.6, backward 24.1; over 50,000 words, 22.5% of the
          targets <UNK>), and 83.4 -> 441.9 on the novels, which shows what is forgotten
measured  the result, on a copy of that text, in one run that was stopped and resumed; learning rates were not searched
"""

from ml_collections import ConfigDict

from elmo_jax.config import default_config


def get_config() -> ConfigDict:
    """Returns the settings: one epoch with half the learning rate of the pretraining."""
    config = default_config()
    config.model.dropout = 0.0  # one epoch does not overfit
    config.train.batch_size = 64
    config.train.unroll_steps = 20
    config.train.negatives = 2048
    config.train.epochs = 1.0
    config.train.carry = "block"
    config.train.precision = "auto"
    config.train.optimizer.name = "adam"
    config.train.optimizer.learning_rate = 0.0015
    config.train.optimizer.softmax_learning_rate = 0.25
    config.train.optimizer.initial_accumulator = 0.1
    config.train.optimizer.schedule = "warmup_cosine"
    config.train.optimizer.warmup_steps = 100
    config.checkpoint.every = 1000
    return config
