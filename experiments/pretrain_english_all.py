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
result    123.8 held-out perplexity (forward 123.3, backward 124.4; 100,000 of the 1.8 M held-out tokens, 100,000 words)
          with --config.train.steps=9900, which is 12.7 M of 83 M tokens; 100,831 before training
          perplexity per source, on the first 15,000 held-out words of each: captions 40.8; speeches 138.3; web 143.4; a
          novel, "The Secret Agent", 145.9; biomedical 162.5; Wikipedia 165.6; reviews 173.7; government 177.8; news
          184.6; MASC 195.9 (4,083 tokens); Brown 199.3 (9,332); Wikinews 275.5 (598); the first 5,000 words of each of
          the five novels together 123.1. Over the 38,018 words of both vocabularies it has 111.2 there, and the biLM
          of `pretrain_fiction.py`, which read as many tokens, all of them of novels, has 86.0
measured  the speed, the preparation and the perplexities. The training was stopped and resumed several times, on one
          core and on two
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
