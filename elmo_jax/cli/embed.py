"""The command `embed`."""

from __future__ import annotations

import argparse

from elmo_jax.cli.options import Commands, add_model_options, add_process_options, model_source
from elmo_jax.cli.values import local, number
from elmo_jax.distributed.initialize import connected
from elmo_jax.errors import UserError


def add_command(commands: Commands[argparse.ArgumentParser]) -> None:
    """Adds `embed`."""
    parser = commands.add_parser(
        "embed",
        help="vectors of sentences, or of words",
        description="Writes the vectors of sentences, one tokenised sentence per line. Dataset '0' of the HDF5 file"
        " is the first line's. All local devices share the work; of several processes, which must share the folder of"
        " the output, each takes its part of the lines. The same command resumes an interrupted one.",
        allow_abbrev=False,
    )
    add_model_options(parser)
    parser.add_argument("text", type=local, metavar="sentences.txt", help="with --words: vocab.txt, one word a line")
    parser.add_argument("out", type=local, metavar="vectors.hdf5", help="the file to make")
    parser.add_argument(
        "--words", action="store_true", help="the context-free vectors of a word list: dataset 'embedding' [words, dim]"
    )
    parser.add_argument(
        "--layers",
        choices=("all", "top", "average", "mix"),
        default="all",
        help="all: [layers + 1, T, dim]; else [T, dim] (%(default)s)",
    )
    parser.add_argument("--weights", metavar="W,W,…", help="with --layers mix: each layer's weight before the softmax")
    parser.add_argument("--gamma", type=number(), default=1.0, metavar="X", help="with --layers mix: the scale (1)")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="of the file (%(default)s)")
    parser.add_argument(
        "--state",
        choices=("reset", "carry", "warm_up"),
        default="reset",
        help="what the LSTMs begin a line with: zeros; what the line before left, as the original (slow); or what the"
        " line itself left (%(default)s)",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of the operands of matrix products (%(default)s)",
    )
    add_process_options(parser)
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
            raise UserError(f"--weights: expected numbers with commas between, got {options.weights!r}") from None
    settings = Settings(Output(options.layers), weights, options.gamma, options.dtype, CarryState(options.state))
    if options.words and settings != Settings():
        raise UserError(
            "--words writes one vector per word; --layers, --weights, --gamma, --dtype, --state do not apply"
        )
    with connected(options.coordinator, options.processes, options.process, options.heartbeat):
        import jax

        from elmo_jax.distributed.collectives import is_first

        bilm = load_bilm(model_source(options), options.precision)
        if options.words:
            if jax.process_count() > 1:
                raise UserError("--words: a word list is embedded by one process; give --processes 1")
            print(f"{embed_words(bilm, options.text, options.out):,} words in {options.out}")
            return 0
        lines = embed_file(bilm.on(jax.local_devices()), options.text, options.out, settings)
        if is_first():
            print(f"{lines:,} lines in {options.out}")
    return 0
