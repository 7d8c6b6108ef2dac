"""The commands that take a trained biLM: published weights in and out, and vectors."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from etils import epath

from elmo_jax.errors import UserError

if TYPE_CHECKING:
    from elmo_jax.embedding.bilm import EmbeddingBiLM

Commands = argparse._SubParsersAction


def add_commands(commands: Commands[argparse.ArgumentParser]) -> None:
    """Adds `import-hdf5`, `export-hdf5` and `embed`."""
    taken = commands.add_parser(
        "import-hdf5",
        help="take a published biLM",
        description="Writes the export of a published biLM, for elmo_jax.load_bilm. Bit-equal.",
        allow_abbrev=False,
    )
    taken.add_argument("options", type=Path, metavar="options.json")
    taken.add_argument("weights", type=Path, metavar="weights.hdf5")
    taken.add_argument("out", type=Path, metavar="OUT", help="the export's folder")
    taken.set_defaults(run=_import_hdf5)

    given = commands.add_parser(
        "export-hdf5",
        help="write a biLM as published",
        description="Writes a biLM in the published format, which the original and AllenNLP read. Without the softmax.",
        allow_abbrev=False,
    )
    given.add_argument("model", type=epath.Path, metavar="RUN_OR_EXPORT")
    given.add_argument("weights", type=Path, metavar="weights.hdf5")
    given.add_argument("options", type=Path, metavar="options.json")
    given.set_defaults(run=_export_hdf5)
    _add_embed(commands)


def _add_embed(commands: Commands[argparse.ArgumentParser]) -> None:
    embed = commands.add_parser(
        "embed",
        help="vectors of sentences, or of words",
        description="Writes the vectors of sentences, one tokenised sentence a line. Dataset '0' of the HDF5 file"
        " is the first line's. The same command goes on where an interrupted one stopped.",
        allow_abbrev=False,
    )
    embed.add_argument(
        "model", type=epath.Path, metavar="SOURCE", help="a run's folder, an export, or weights.hdf5 with --options"
    )
    embed.add_argument("text", type=Path, metavar="sentences.txt", help="with --words: vocab.txt, one word a line")
    embed.add_argument("out", type=Path, metavar="vectors.hdf5", help="the file to make")
    embed.add_argument("--options", type=Path, metavar="FILE", help="the options.json of a published biLM")
    embed.add_argument(
        "--words", action="store_true", help="the context-free vectors of a word list: dataset 'embedding' [words, dim]"
    )
    embed.add_argument(
        "--layers",
        choices=("all", "top", "average", "mix"),
        default="all",
        help="all: [layers + 1, T, dim]; else [T, dim] (%(default)s)",
    )
    embed.add_argument("--weights", metavar="W,W,…", help="with --layers mix: each layer's weight before the softmax")
    embed.add_argument("--gamma", type=float, default=1.0, metavar="X", help="with --layers mix: the scale (1)")
    embed.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="of the file (%(default)s)")
    embed.add_argument(
        "--state",
        choices=("reset", "carry", "warm_up"),
        default="reset",
        help="what the LSTMs begin a line with: zeros; what the line before left, as the original (slow); or what the"
        " line itself left (%(default)s)",
    )
    embed.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of the operands of matrix products (%(default)s)",
    )
    embed.set_defaults(run=_embed)


def _import_hdf5(options: argparse.Namespace) -> int:
    from elmo_jax.embedding.convert import import_hdf5

    bilm = import_hdf5(options.options, options.weights, options.out)
    print(f"imported to {options.out} (fingerprint {bilm.fingerprint[:12]}); elmo_jax.load_bilm({str(options.out)!r})")
    return 0


def _export_hdf5(options: argparse.Namespace) -> int:
    from elmo_jax.embedding.convert import export_hdf5
    from elmo_jax.training.run_folder import load_run_or_export

    export_hdf5(load_run_or_export(options.model), options.weights, options.options)
    print(f"written: {options.weights}, {options.options}")
    return 0


def _embed(options: argparse.Namespace) -> int:
    from elmo_jax.embedding.embed import CarryState
    from elmo_jax.embedding.file import Output, Settings, embed_file, embed_words

    weights: tuple[float, ...] = ()
    if options.weights:
        try:
            weights = tuple(float(weight) for weight in options.weights.split(","))
        except ValueError:
            raise UserError(f"--weights: expected numbers with commas between, got {options.weights!r}") from None
    settings = Settings(Output(options.layers), weights, options.gamma, options.dtype, CarryState(options.state))
    if options.words:
        if settings != Settings():
            raise UserError(
                "--words writes one vector a word; --layers, --weights, --gamma, --dtype, --state do not apply"
            )
        print(f"{embed_words(_model(options), options.text, options.out):,} words in {options.out}")
    else:
        print(f"{embed_file(_model(options), options.text, options.out, settings):,} lines in {options.out}")
    return 0


def _model(options: argparse.Namespace) -> EmbeddingBiLM:
    from elmo_jax.embedding.bilm import EmbeddingBiLM, load_bilm
    from elmo_jax.model.precision import Precision

    if options.options is not None:
        return load_bilm((options.options, options.model), options.precision)
    if options.model.is_file():
        raise UserError(f"{options.model}: a file; for published weights give --options options.json too")
    from elmo_jax.training.run_folder import load_run_or_export

    return EmbeddingBiLM.of(load_run_or_export(options.model), Precision(options.precision))
