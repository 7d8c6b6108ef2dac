r"""Finds the nearest neighbours of a word in context and of GloVe's vector of the word: Table 4 of the paper.

    python experiments/paper/table4.py --bilm runs/english --semcor semcor3.0 --glove glove.840B.300d.zip \
        --out runs/layers

The queries are "play" in two sentences of SemCor, one about sport and one about the theatre. For each, the script
prints the ten words of SemCor with the nearest vectors by cosine, in the second layer with both directions (section
5.3), and the senses that SemCor gives to them. GloVe's neighbours are those of the word itself, among the words of
SemCor and of the biLM's vocabulary. `elmo-jax neighbours` does the same with any text. Vectors are kept in --out for
the next command.

data      SemCor 3.0, from the page of Rada Mihalcea; GloVe's vectors, from the page of the Stanford NLP group
hardware  2 CPU cores
time      3 minutes for SemCor's 820,000 words with the packaged biLM, 20 s once they are embedded
expected  the neighbours have the sense of the query: sport near sport, the theatre near the theatre
measured  with the packaged biLM they do not: both lists mix sport and theatre, and the two sentences ("made a
          spectacular play", "signed to do a Broadway play") are each other's first neighbours, with a cosine of 0.742.
          The sport sentence that the paper prints is the fourth. The uses of "bank" in docs/tutorial.md do come apart
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from elmo_jax.analysis.neighbours import Neighbour, Occurrence, nearest, occurrence_in
from elmo_jax.analysis.vectors import Words, embed
from elmo_jax.cli.values import whole
from elmo_jax.files import write_json
from elmo_jax.tasks.core.word_vectors import read_vectors
from elmo_jax.words import split_words
from framework import read_senses
from results import BILM_HELP, Model, nearest_types, open_models, run_script
from semcor import Sentence

LAYER = 2
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


def query(sentences: Sequence[Sentence], beginning: str, word: str) -> Occurrence:
    """Returns a word in the sentence of the text with this beginning or, if there is none, in the beginning itself."""
    begin = tuple(split_words(beginning))
    found = next((sentence.words for sentence in sentences if sentence.words[: len(begin)] == begin), begin)
    return occurrence_in(found, word)


def senses_of(sentences: Sequence[Sentence]) -> Senses:
    """Returns the first sense key at each position that has one; all words of an expression have its key."""
    return {
        (sentence.words, place): instance.keys[0]
        for sentence in sentences
        for instance in sentence.instances
        for place in range(instance.start, instance.end)
    }


def lines_of(neighbours: Sequence[Neighbour], senses: Senses, around: int) -> list[str]:
    """Returns one line per neighbour with the cosine, the sense in SemCor and the surrounding words."""
    keys = [senses.get(neighbour.occurrence, "") for neighbour in neighbours]
    width = max(map(len, keys), default=0)
    return [
        f"  {neighbour.cosine:.3f}  {key:<{width}}  {neighbour.occurrence.shown(around)}"
        for key, neighbour in zip(keys, neighbours, strict=True)
    ]


def of_model(
    model: Model, sentences: Sequence[Sentence], queries: Sequence[Occurrence], options: argparse.Namespace
) -> list[list[Neighbour]]:
    """Prints the neighbours of each query."""
    folder, text = options.out / "vectors", [sentence.words for sentence in sentences]
    print(f"\nbiLM {model.name}, second layer: {embed(folder, model.bilm, text).speed}", flush=True)
    senses = senses_of(sentences)
    found = nearest(folder, model.bilm, text, queries, options.number, LAYER)
    for asked, neighbours in zip(queries, found, strict=True):
        print(f"\n{asked.shown(options.around)}  {senses.get(asked, '')}".rstrip())
        published = next((text for begin, text in PAPER.items() if " ".join(asked.words).startswith(begin)), None)
        if published:
            print(f"  paper: {published}")
        print("\n".join(lines_of(neighbours, senses, options.around)), flush=True)
    return found


def of_glove(options: argparse.Namespace, models: Sequence[Model], sentences: Sequence[Sentence]) -> None:
    """Prints the neighbours of the word by GloVe's vectors."""
    words = {word for sentence in sentences for word in sentence.words} | {options.word}
    for model in models:
        words |= set(model.bilm.vocabulary or [])
    found = nearest_types(read_vectors(options.glove, words), options.word, options.number)
    if options.word == "play":
        print(f"\nGloVe, paper: {PAPER_GLOVE}")
    print(f"GloVe, {options.glove}: {', '.join(word for _, word in found)}", flush=True)


def as_json(queries: Sequence[Occurrence], found: Mapping[str, list[list[Neighbour]]]) -> object:
    """Returns the contents of `table4.json`."""
    return [
        {
            "sentence": " ".join(asked.words),
            "place": asked.place,
            "neighbours": {
                model: [
                    {"cosine": n.cosine, "sentence": " ".join(n.occurrence.words), "place": n.occurrence.place}
                    for n in of_queries[number]
                ]
                for model, of_queries in found.items()
            },
        }
        for number, asked in enumerate(queries)
    ]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the options of the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--bilm", nargs="+", required=True, metavar="BILM", help=BILM_HELP)
    parser.add_argument(
        "--semcor", type=Path, required=True, metavar="PATH", help="the folder of SemCor 3.0, or semcor.data.xml"
    )
    parser.add_argument("--glove", metavar="FILE", help="GloVe's vectors, or glove-6b-50d for the package with them")
    parser.add_argument("--word", default="play", help="(%(default)s)")
    parser.add_argument(
        "--sentences",
        nargs="+",
        default=list(PAPER),
        metavar="TEXT",
        help="sentences with the word (default: the paper's)",
    )
    parser.add_argument(
        "--number",
        type=whole(1),
        default=10,
        metavar="N",
        help="number of neighbours per sentence (default: %(default)s)",
    )
    parser.add_argument(
        "--around",
        type=whole(0),
        default=14,
        metavar="N",
        help="number of words printed on either side (default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/layers"), metavar="DIR", help="(%(default)s)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"search only {QUICK_SENTENCES} sentences with the word and the first {QUICK_SENTENCES}, as a trial run",
    )
    return parser.parse_args(arguments)


def experiment(options: argparse.Namespace) -> None:
    """Prints and writes the tables."""
    models = open_models(options.bilm)
    sentences = read_senses(options.semcor).sentences
    queries = [query(sentences, text, options.word) for text in options.sentences]
    if options.quick:
        with_word = [sentence for sentence in sentences if options.word in sentence.words]
        sentences = with_word[:QUICK_SENTENCES] + sentences[:QUICK_SENTENCES]
    print(f'Table 4: the nearest neighbours of "{options.word}"')
    if options.glove:
        of_glove(options, models, sentences)
    found = {model.name: of_model(model, sentences, queries, options) for model in models}
    write_json(options.out / "table4.json", as_json(queries, found))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the experiment and returns the exit status."""
    return run_script("table4", experiment, parse(arguments))


if __name__ == "__main__":
    sys.exit(main())
