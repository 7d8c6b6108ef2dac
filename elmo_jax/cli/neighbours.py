"""Defines the command `neighbours`."""

import argparse

from elmo_jax.cli.options import (
    SOURCES,
    Commands,
    add_choice,
    add_model_options,
    add_text_options,
    add_whole,
    model_source,
    text_options,
)
from elmo_jax.cli.values import local, source
from elmo_jax.errors import UserError
from elmo_jax.files import temporary_folder
from elmo_jax.words import split_words


def add_command(commands: Commands) -> None:
    """Adds the command `neighbours`."""
    parser = commands.add_parser(
        "neighbours",
        help="find the nearest neighbours of a word in context",
        description="Prints the words of a text whose vectors are nearest by cosine to that of a word in a sentence of"
        " the text or in a given sentence. The vectors are those of one layer in both directions.",
    )
    add_model_options(parser)
    parser.add_argument("text", type=source, metavar="TEXT", help=SOURCES)
    parser.add_argument("--word", required=True, metavar="WORD", help="the word, spelled as in the text")
    parser.add_argument(
        "--sentence",
        action="append",
        default=[],
        metavar="TEXT",
        help="a tokenized sentence, or several, each with this option; the first occurrence of the word in it is taken"
        " (default: sentences of the text)",
    )
    add_choice(
        parser,
        "--among",
        ("words", "uses"),
        "compare with all words of the text, all of which are embedded first, or with the other uses of the same word,"
        " for which only the sentences with this word are embedded",
    )
    add_whole(parser, "--occurrences", 1, 3, "without --sentence: number of occurrences of the word in the text")
    add_whole(parser, "--number", 1, 10, "number of neighbours per occurrence")
    add_whole(parser, "--layer", 0, 2, "layer of the vectors; 0 is the token layer")
    add_whole(parser, "--around", 0, 12, "number of words printed on either side")
    parser.add_argument(
        "--cache",
        type=local,
        metavar="DIR",
        help="folder in which the text's vectors are kept, which makes the next query fast",
    )
    add_text_options(parser)
    parser.set_defaults(run=_neighbours)


def _neighbours(options: argparse.Namespace) -> int:
    from elmo_jax.analysis.neighbours import nearest, nearest_uses, occurrence_in, occurrences, read_text
    from elmo_jax.embedding.bilm import load_bilm

    bilm = load_bilm(model_source(options))
    sentences = read_text(options.text, text_options(options).in_language(bilm.language))
    queries = [occurrence_in(tuple(split_words(sentence)), options.word) for sentence in options.sentence]
    if not queries:
        queries = occurrences(sentences, options.word)[: options.occurrences]
        if not queries:
            raise UserError(f"{options.text}: the word {options.word!r} is not in the text; give a --sentence with it")
    if options.among == "uses":
        results = nearest_uses(bilm, sentences, queries, options.number, options.layer)
    else:
        with temporary_folder() as folder:
            results = nearest(options.cache or folder, bilm, sentences, queries, options.number, options.layer)
    for query, neighbours in zip(queries, results, strict=True):
        print(f"\n{query.shown(options.around)}")
        for neighbour in neighbours:
            print(f"  {neighbour.cosine:.3f}  {neighbour.occurrence.shown(options.around)}")
        if not neighbours:
            what = "use of the word" if options.among == "uses" else "word"
            print(f"  the text has no {what} outside this sentence")
    return 0
