"""Defines the command `prepare`."""

import argparse

from elmo_jax.cli.options import (
    SOURCES,
    Commands,
    add_split_options,
    add_text_options,
    text_options,
    words_file,
)
from elmo_jax.cli.values import anywhere, downloaded, source, whole


def add_command(commands: Commands) -> None:
    """Adds the command `prepare`."""
    parser = commands.add_parser(
        "prepare",
        help="prepare a training corpus from text",
        description="Counts words, chooses the vocabulary, holds out a part of the text and writes encoded blocks.",
    )
    parser.add_argument("sources", nargs="+", type=source, metavar="SOURCE", help=SOURCES)
    parser.add_argument("--out", type=anywhere, required=True, metavar="DIR", help="the corpus's folder")
    parser.add_argument("--vocab-size", type=whole(1), metavar="V", help="largest number of words in the vocabulary")
    parser.add_argument(
        "--min-count",
        type=whole(1),
        metavar="N",
        help="least count in the training text of a word in the vocabulary (default: 2, or 1 with --vocab-size)",
    )
    parser.add_argument(
        "--vocab",
        type=downloaded,
        metavar="FILE",
        help="use exactly this vocabulary, a file of one word per line or an export",
    )
    parser.add_argument(
        "--extend-vocab",
        type=downloaded,
        metavar="FILE",
        help="use this vocabulary, a file or an export, followed by the words chosen as above",
    )
    add_split_options(parser)
    add_text_options(parser)
    parser.add_argument(
        "--beam",
        metavar="OPTIONS",
        help="prepare on Apache Beam, with these pipeline options of Beam, as in --beam='--runner=FlinkRunner"
        " --flink_master=HOST:8081'; needs elmo_jax[beam]; the result is the same",
    )
    parser.set_defaults(run=_prepare)


def _prepare(options: argparse.Namespace) -> int:
    from elmo_jax.data.prepare.options import PrepareOptions
    from elmo_jax.data.prepare.pipeline import describe, prepare

    with words_file(options.vocab) as (words, code), words_file(options.extend_vocab) as (first_words, first_code):
        chosen = PrepareOptions(
            text_options(options).in_language(code or first_code or "en"),
            vocabulary_size=options.vocab_size,
            min_count=options.min_count,
            vocabulary_file=words,
            base_vocabulary_file=first_words,
            heldout_fraction=options.heldout_fraction,
            heldout_sources=options.heldout,
            workers=options.workers,
            beam=options.beam,
        )
        corpus = prepare(options.sources, options.out, chosen)
    print(describe(corpus))
    return 0
