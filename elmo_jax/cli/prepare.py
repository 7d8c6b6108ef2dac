"""Defines the commands `prepare` and `tokenize`."""

import argparse

from elmo_jax.cli import options as shared
from elmo_jax.cli.values import anywhere, check_distinct, downloaded, output, source, tolerant_output, whole
from elmo_jax.files import write_text


def add_command(commands: shared.Commands) -> None:
    """Adds the commands `prepare` and `tokenize`."""
    parser = commands.add_parser(
        "prepare",
        help="prepare a training corpus from text",
        description="Counts words, chooses the vocabulary, holds out a part of the text and writes encoded blocks.",
    )
    parser.add_argument("sources", nargs="+", type=source, metavar="SOURCE", help=shared.SOURCES)
    parser.add_argument("--out", type=anywhere, required=True, metavar="DIR", help="the corpus's folder")
    parser.add_argument("--vocab-size", type=whole(1), metavar="V", help="largest number of words in the vocabulary")
    least = "least count in the training text of a word in the vocabulary (default: 2, or 1 with --vocab-size)"
    parser.add_argument("--min-count", type=whole(1), metavar="N", help=least)
    exactly = "use exactly this vocabulary, a file of one word per line (the most frequent first) or an export"
    parser.add_argument("--vocab", type=downloaded, metavar="FILE", help=exactly)
    first = "use this vocabulary, a file or an export, followed by the words chosen as above"
    parser.add_argument("--extend-vocab", type=downloaded, metavar="FILE", help=first)
    shared.add_split_options(parser)
    shared.add_text_options(parser)
    beam = (
        "prepare on Apache Beam, with these pipeline options of Beam, as in --beam='--runner=FlinkRunner"
        " --flink_master=HOST:8081'; needs elmo_jax[beam]; the result is the same"
    )
    parser.add_argument("--beam", metavar="OPTIONS", help=beam)
    parser.set_defaults(run=_prepare)

    parser = commands.add_parser(
        "tokenize",
        help="split running text into sentences and words",
        description="Writes running text as embed reads it, one tokenized sentence per line, split by the rules with"
        " which prepare split the text of the biLM. Of a text that is tokenized already, blank lines are left out.",
    )
    shared.add_model_options(parser)
    parser.add_argument("text", type=source, metavar="TEXT", help=shared.SOURCES)
    parser.add_argument("--out", type=output, metavar="FILE", help="the file to write (default: standard output)")
    shared.add_text_options(parser)
    parser.set_defaults(run=_tokenize)


def _prepare(options: argparse.Namespace) -> int:
    from elmo_jax.data.prepare.options import PrepareOptions
    from elmo_jax.data.prepare.pipeline import describe, prepare

    whole, first = shared.words_file(options.vocab), shared.words_file(options.extend_vocab)
    with whole as (words, code), first as (first_words, first_code):
        chosen = PrepareOptions(
            shared.text_options(options).in_language(code or first_code or "en"),
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


def _tokenize(options: argparse.Namespace) -> int:
    from elmo_jax.analysis.neighbours import read_text
    from elmo_jax.checkpoints.open import open_bilm
    from elmo_jax.runs.progress import print_above

    check_distinct({"--out": options.out}, {"MODEL": options.model}, [options.text])
    language = open_bilm(shared.model_source(options)).language
    sentences = read_text(options.text, shared.text_options(options).in_language(language))
    text = "".join(" ".join(words) + "\n" for words in sentences)
    if options.out:
        write_text(options.out, text)
    else:
        tolerant_output("utf-8")
        print_above(text)
    return 0
