"""Defines the command `embed`."""

from __future__ import annotations

import argparse
from pathlib import Path

from elmo_jax.cli.options import Commands, add_model_options, model_source
from elmo_jax.errors import UserError


def add_command(commands: Commands[argparse.ArgumentParser]) -> None:
    """Adds the command `embed`."""
    parser = commands.add_parser(
        "embed",
        help="write the vectors of sentences or words to HDF5",
        description="Writes the vectors of sentences to an HDF5 file. The text has one tokenized sentence per line;"
        " dataset '0' belongs to the first line. If the command is interrupted, run it again to resume.",
        allow_abbrev=False,
    )
    add_model_options(parser)
    parser.add_argument(
        "text", type=Path, metavar="sentences.txt", help="the text; with --words, a list of one word per line"
    )
    parser.add_argument("out", type=Path, metavar="vectors.hdf5", help="the file to write")
    parser.add_argument(
        "--words",
        action="store_true",
        help="write the context-independent vectors of a word list: dataset 'embedding' [words, dim]",
    )
    parser.add_argument(
        "--layers",
        choices=("all", "top", "average", "mix"),
        default="all",
        help="all: vectors [layers + 1, T, dim]; otherwise [T, dim] (default: %(default)s)",
    )
    parser.add_argument(
        "--weights", metavar="W,W,…", help="with --layers mix: the weight of each layer before the softmax"
    )
    parser.add_argument(
        "--gamma", type=float, default=1.0, metavar="X", help="with --layers mix: the scale (default: 1)"
    )
    parser.add_argument(
        "--dtype", choices=("float32", "float16"), default="float32", help="type of the vectors (default: %(default)s)"
    )
    parser.add_argument(
        "--state",
        choices=("reset", "carry", "warm_up"),
        default="reset",
        help="the LSTM state at the start of a line: zeros (reset); the state after the line before, as in the original"
        " (carry, slow); or the state after reading the line itself once (warm_up) (default: %(default)s)",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="type of the operands of matrix products (default: %(default)s)",
    )
    parser.set_defaults(run=_embed)


def _embed(options: argparse.Namespace) -> int:
    from elmo_jax.embedding.bilm import load_bilm
    from elmo_jax.embedding.embed import CarryState
    from elmo_jax.embedding.file import Output, Settings, embed_file
    from elmo_jax.embedding.words_file import embed_words

    weights: tuple[float, ...] = ()
    if options.weights:
        try:
            weights = tuple(float(weight) for weight in options.weights.split(","))
        except ValueError:
            raise UserError(f"--weights: expected numbers separated by commas, got {options.weights!r}") from None
    settings = Settings(Output(options.layers), weights, options.gamma, options.dtype, CarryState(options.state))
    if options.words:
        if settings != Settings():
            raise UserError(
                "--words writes one vector per word; remove --layers, --weights, --gamma, --dtype and --state"
            )
        words = embed_words(load_bilm(model_source(options), options.precision), options.text, options.out)
        print(f"wrote the vectors of {words:,} words to {options.out}")
    else:
        lines = embed_file(load_bilm(model_source(options), options.precision), options.text, options.out, settings)
        print(f"wrote the vectors of {lines:,} lines to {options.out}")
    return 0
