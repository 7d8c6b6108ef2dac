"""Defines the command `tokenize`."""

import argparse

from elmo_jax.cli.options import SOURCES, Commands, add_model_options, add_text_options, model_source, text_options
from elmo_jax.cli.values import check_distinct, output, source, tolerant_output
from elmo_jax.files import write_text


def add_command(commands: Commands) -> None:
    """Adds the command `tokenize`."""
    parser = commands.add_parser(
        "tokenize",
        help="split running text into sentences and words",
        description="Writes running text as embed reads it, one tokenized sentence per line, split by the rules with"
        " which prepare split the text of the biLM. A text that is tokenized already stays as it is.",
    )
    add_model_options(parser)
    parser.add_argument("text", type=source, metavar="TEXT", help=SOURCES)
    parser.add_argument("--out", type=output, metavar="FILE", help="the file to write (default: standard output)")
    add_text_options(parser)
    parser.set_defaults(run=_tokenize)


def _tokenize(options: argparse.Namespace) -> int:
    from elmo_jax.analysis.neighbours import read_text
    from elmo_jax.checkpoints.open import open_bilm
    from elmo_jax.runs.progress import print_above

    check_distinct({"--out": options.out}, {"MODEL": options.model}, [options.text])
    language = open_bilm(model_source(options)).language
    sentences = read_text(options.text, text_options(options).in_language(language))
    text = "".join(" ".join(words) + "\n" for words in sentences)
    if options.out:
        write_text(options.out, text)
    else:
        tolerant_output("utf-8")
        print_above(text)
    return 0
