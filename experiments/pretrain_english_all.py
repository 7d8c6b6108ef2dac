r"""Pretrains the biLM of `pretrain_english.py` on 80 M words, also such as may be used for research only.

It adds news, image captions, film reviews and web text to the seven sources of `pretrain_english.py`, from these public
repositories on GitHub:

    news.txt      wuodar/reuters_text_classification (Reuters-21578), jgscott/STA380 (Reuters 50-50), dejanbatanjac/
                  bbc-article-classify-bert, nltk/nltk_data (`abc`), aschern/semeval2020_task11, tommasoc80/
                  EventStoryLine (research; the text is the agencies' own)
    captions.txt  multi30k/dataset, Karan14-11/image_caption_generator (Flickr; research, not commercial), lil-lab/nlvr
                  (CC-BY-4.0)
    reviews.txt   PVidyadhar/Detection-of-Fraud-apps-using-Sentiment-Analysis (IMDb, without its test part; research)
    web.txt       muhwagua/color-bert (Blog Authorship Corpus), spoddutur/spark-ml-dashboard (20 Newsgroups),
                  ryanzhumich/AESLC (e-mail; CC-BY-NC-SA-4.0), seomoz/dragnet_data, lorenzoritter/domainadaption
    brown.txt     nltk/nltk_data, `brown` (not commercial)

A biLM trained on them must not be given away with the package. These commands, run in the folder of the text, prepare
and train:

    elmo-jax prepare novels wikipedia.txt biomedical.txt government.txt masc.txt wikinews.txt sotu news.txt \
        captions.txt reviews.txt web.txt brown.txt --out data/english_all --vocab-size 100000 --heldout-fraction 0.01 \
        --heldout novels/158_* novels/24_* novels/4217_* novels/6593_* novels/9830_*
    elmo-jax pretrain --config experiments/pretrain_english_all.py --workdir runs/english_all

hardware  2 CPU cores
time      2,000 tokens/s (1,200 on one core), at which an epoch would take 12 hours; preparing the text took 7 minutes
result    none yet: with --config.train.steps=9900 it has been trained for 4,079 steps, 5.2 M tokens
measured  the speed and the preparation. The whole held-out text, 1.7 M tokens, takes 50 minutes to evaluate, so a part
          of it has to do
"""

from pathlib import Path

from ml_collections import ConfigDict

from elmo_jax.config_file import load_file


def get_config() -> ConfigDict:
    """Returns the settings of `pretrain_english.py` with another corpus."""
    config = load_file(Path(__file__).with_name("pretrain_english.py"))
    config.data.corpus = "data/english_all"
    config.evaluation.tokens = 100_000
    return config
