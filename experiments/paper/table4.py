r"""Finds the nearest neighbours of a word in context and of GloVe's vector of the word: Table 4 of the paper.

    python experiments/paper/table4.py --bilm runs/english --semcor semcor3.0 --glove glove.840B.300d.zip \
        --out runs/layers

The queries are "play" in two sentences of SemCor, one about sport and one about the theatre. For each, the script
prints the ten words of SemCor with the nearest vectors by cosine, in the second layer with both directions (section
5.3), and the senses that SemCor gives to them. GloVe's neighbours are those of the word itself, among the words of
SemCor and of the biLM's vocabulary. `elmo-jax neighbours` does the same with any word and any text. Vectors are kept in
--out for the next command.

data      SemCor 3.0, from the page of Rada Mihalcea; GloVe's vectors, from the page of the Stanford NLP group
hardware  2 CPU cores
time      3 minutes for SemCor's 820,000 words with the packaged biLM, 20 s once they are embedded
expected  the neighbours have the sense of the query: sport near sport, the theatre near the theatre; with the packaged
          biLM they do not (docs/results.md)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from elmo_jax.analysis.neighbours import Occurrence, Words, nearest, occurrence_in
from elmo_jax.tasks.core.vocabulary import read_vectors
from elmo_jax.words import split_words
from results import Model, open_models, run_script, script_parser
from senses import Sentence, read_senses

WORD, LAYER, NUMBER, AROUND = "play", 2, 10, 14
# The paper's source sentences, as far as it prints them, and the neighbour that it prints for each.
PAPER = {
    "Chico Ruiz made a spectacular play on Alusik 's grounder": (
        "Kieffer , the only junior in the group , was commended for his ability to hit in the clutch , as well as his"
        " all-round excellent play ."
    ),
    "Olivia De Havilland signed to do a Broadway play for Garson": (
        "{…} they were actors who had been handed fat roles in a successful play , and had talent enough to fill the"
        " roles competently , with nice understatement ."
    ),
}
PAPER_GLOVE = "playing, game, games, played, players, plays, player, Play, football, multiplayer"
QUICK_SENTENCES = 300

Senses = dict[tuple[Words, int], str]  # the sense key at a position of a sentence


def query(sentences: Sequence[Sentence], beginning: str) -> Occurrence:
    """Returns the word in the sentence of the text with this beginning or, if there is none, in the beginning."""
    begin = tuple(split_words(beginning))
    words = next((sentence.words for sentence in sentences if sentence.words[: len(begin)] == begin), begin)
    return occurrence_in(words, WORD)


def senses_of(sentences: Sequence[Sentence]) -> Senses:
    """Returns the first sense key at each position that has one; all words of an expression have its key."""
    return {
        (sentence.words, position): instance.keys[0]
        for sentence in sentences
        for instance in sentence.instances
        for position in range(instance.start, instance.end)
    }


def nearest_types(vectors: Mapping[str, np.ndarray], word: str) -> list[str]:
    """Returns the nearest words of a word by the cosine of context-independent vectors, such as GloVe's."""
    words = [other for other in vectors if other != word]
    table = np.stack([vectors[other] for other in words])
    lengths = np.linalg.norm(table, axis=1)
    cosines = table @ vectors[word] / np.where(lengths > 0, lengths, 1)  # times the length of the word's vector
    return [words[row] for row in np.argsort(-cosines, kind="stable")[:NUMBER]]


def print_neighbours(model: Model, sentences: Sequence[Sentence], queries: Sequence[Occurrence], folder: Path) -> None:
    text, senses = [sentence.words for sentence in sentences], senses_of(sentences)
    print(f"\nbiLM {model.name}, second layer", flush=True)
    results = nearest(folder, model.bilm, text, queries, NUMBER, LAYER)
    for asked, neighbours, published in zip(queries, results, PAPER.values(), strict=True):
        print(f"\n{asked.shown(AROUND)}  {senses.get(asked, '')}".rstrip(), f"\n  paper: {published}")
        keys = [senses.get(neighbour.occurrence, "") for neighbour in neighbours]
        width = max(map(len, keys), default=0)
        for key, neighbour in zip(keys, neighbours, strict=True):
            print(f"  {neighbour.cosine:.3f}  {key:<{width}}  {neighbour.occurrence.shown(AROUND)}", flush=True)


def experiment(options: argparse.Namespace) -> None:
    models = open_models(options.bilm)
    sentences = read_senses(options.semcor).sentences
    queries = [query(sentences, text) for text in PAPER]
    if options.quick:
        with_word = [sentence for sentence in sentences if WORD in sentence.words]
        sentences = with_word[:QUICK_SENTENCES] + sentences[:QUICK_SENTENCES]
    print(f'Table 4: the nearest neighbours of "{WORD}"')
    if options.glove:
        words = {word for sentence in sentences for word in sentence.words} | {WORD}
        words |= {word for model in models for word in model.bilm.vocabulary or ()}
        print(f"\nGloVe, paper: {PAPER_GLOVE}")
        print(f"GloVe, {options.glove}: {', '.join(nearest_types(read_vectors(options.glove, words), WORD))}")
    for model in models:
        print_neighbours(model, sentences, queries, options.out / "vectors")


def main(arguments: Sequence[str] | None = None) -> int:
    quick = f"search only {QUICK_SENTENCES} sentences with the word and the first {QUICK_SENTENCES}"
    parser = script_parser(__doc__, quick)
    parser.add_argument(
        "--semcor", type=Path, required=True, metavar="PATH", help="the folder of SemCor 3.0, or semcor.data.xml"
    )
    parser.add_argument("--glove", metavar="FILE", help="GloVe's vectors, or glove-6b-50d for the package with them")
    return run_script("table4", experiment, parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
