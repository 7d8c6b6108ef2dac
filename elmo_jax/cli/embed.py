"""Defines the command `embed`."""

import argparse

from elmo_jax.cli.options import Commands, add_choice, add_model_options, add_process_options, model_source
from elmo_jax.cli.values import local, number
from elmo_jax.distributed.initialize import connected
from elmo_jax.errors import UserError


def add_command(commands: Commands) -> None:
    """Adds the command `embed`."""
    parser = commands.add_parser(
        "embed",
        help="write the vectors of sentences or words to HDF5 or NumPy files",
        description="Writes the vectors of sentences to an HDF5 file or a folder of NumPy files. The text has one"
        " tokenized sentence per line; dataset '0' belongs to the first line. All local devices share the work. Several"
        " processes, which must share the folder of the output, take a part of the lines each. If the command is"
        " interrupted, run it again to resume.",
    )
    add_model_options(parser)
    parser.add_argument(
        "text", type=local, metavar="sentences.txt", help="the text; with --words, a list of one word per line"
    )
    parser.add_argument(
        "out", type=local, metavar="vectors.hdf5", help="the file to write, or the folder of --format npy"
    )
    add_choice(
        parser,
        "--format",
        ("hdf5", "npy"),
        "one HDF5 file, or a folder of NumPy files of at most 1,024 lines each, for large texts; in Python,"
        " elmo_jax.VectorShards reads the folder",
    )
    parser.add_argument(
        "--words",
        action="store_true",
        help="write the context-independent vectors of a word list: dataset 'embedding' [words, dim]",
    )
    add_choice(
        parser, "--layers", ("all", "top", "average", "mix"), "all: vectors [layers + 1, T, dim]; otherwise [T, dim]"
    )
    parser.add_argument(
        "--weights", metavar="W,W,…", help="with --layers mix: the weight of each layer before the softmax"
    )
    parser.add_argument(
        "--gamma", type=number(), default=1.0, metavar="X", help="with --layers mix: the scale (default: 1)"
    )
    parser.add_argument(
        "--mean-of-words", action="store_true", help="one vector per sentence, the mean of its words': T is 1"
    )
    parser.add_argument(
        "--sentence-index",
        action="store_true",
        help="in HDF5, also write sentence_to_index, for programs that read AllenNLP's files",
    )
    add_choice(parser, "--dtype", ("float32", "float16"), "type of the vectors")
    add_choice(
        parser,
        "--state",
        ("reset", "carry", "warm_up"),
        "the LSTM state at the start of a line: zeros (reset); the state after the line before, as in bilm-tf"
        " (carry, slow); or the state after reading the line itself once (warm_up)",
    )
    add_choice(parser, "--precision", ("float32", "bfloat16"), "type of the operands of matrix products")
    add_process_options(parser)
    parser.set_defaults(run=_embed)


def _embed(options: argparse.Namespace) -> int:
    from elmo_jax.embedding.bilm import load_bilm
    from elmo_jax.embedding.embed import CarryState
    from elmo_jax.embedding.embed_file import embed_file
    from elmo_jax.embedding.output_settings import Format, Output, Settings
    from elmo_jax.embedding.words_file import embed_words

    weights: tuple[float, ...] = ()
    if options.weights:
        try:
            weights = tuple(float(weight) for weight in options.weights.split(","))
        except ValueError:
            raise UserError(f"--weights: expected numbers separated by commas, got {options.weights!r}") from None
    settings = Settings(
        Output(options.layers),
        weights,
        options.gamma,
        options.dtype,
        CarryState(options.state),
        Format(options.format),
        options.mean_of_words,
        options.sentence_index,
    )
    if options.words and settings != Settings():
        raise UserError(
            "--words writes one vector per word; remove --layers, --weights, --gamma, --dtype, --state, --format,"
            " --mean-of-words and --sentence-index"
        )
    with connected(options.coordinator, options.processes, options.process, options.heartbeat):
        import jax

        from elmo_jax.distributed.collectives import is_primary, raise_on_all

        with raise_on_all():
            bilm = load_bilm(model_source(options), options.precision)
        if options.words:
            if jax.process_count() > 1:
                raise UserError("--words: a word list is embedded by one process; give --processes 1")
            print(f"wrote the vectors of {embed_words(bilm, options.text, options.out):,} words to {options.out}")
            return 0
        lines = embed_file(bilm.on(jax.local_devices()), options.text, options.out, settings)
        if is_primary():
            print(f"wrote the vectors of {lines:,} lines to {options.out}")
    return 0
