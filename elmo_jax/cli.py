"""The command `elmo-jax`: parse, then call."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from etils import epath

from elmo_jax import cli_compile, cli_finetune, cli_vectors
from elmo_jax.bench import command as bench
from elmo_jax.environment import keep_freed_memory
from elmo_jax.errors import PeerLost, UserError, exit_status
from elmo_jax.training.processes import add_process_flags, connected

EPILOG = """\
a whole training:
  elmo-jax prepare sotu --out data/sotu
  elmo-jax pretrain --config experiments/pretrain_sotu_tiny.py --workdir runs/sotu_tiny
  elmo-jax evaluate runs/sotu_tiny --data my_text.txt
"""

SOURCES = """\
a text file, a folder or a quoted glob (plain, .gz, .xz, .zst); tfds:NAME for a TFDS text dataset, such as tfds:lm1b;
sotu for the State of the Union addresses, licenses for software licences
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status.

    0 done; 2 a mistake of the user's; 75 another process was lost; 128 + signal when asked to stop.
    """
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    overrides = [argument for argument in rest if argument.startswith("--config.")]
    strangers = [argument for argument in rest if argument not in overrides]
    if strangers or (overrides and not getattr(options, "takes_settings", False)):
        parser.error(f"not understood: {' '.join(strangers or overrides)}")
    options.overrides = overrides
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    keep_freed_memory()
    try:
        status: int = options.run(options)
        return status
    except (UserError, PeerLost, KeyboardInterrupt) as error:
        print(f"elmo-jax: {str(error) or 'interrupted'}", file=sys.stderr)
        return exit_status(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "elmo-jax",
        description="Pretrain, evaluate and export ELMo's bidirectional language model.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_prepare(commands)

    pretrain = commands.add_parser(
        "pretrain",
        help="train a biLM, or go on with a run",
        description="Trains a biLM. The same command goes on with a run that was stopped or killed.",
        epilog="every setting can be overridden: --config.train.batch_size=64 --config.data.corpus=data/mine",
        allow_abbrev=False,
    )
    pretrain.add_argument("--config", type=Path, required=True, metavar="FILE", help="the experiment, a Python file")
    pretrain.add_argument(
        "--workdir", type=epath.Path, metavar="DIR", help="the run's folder (default: runs/NAME_OF_FILE)"
    )
    add_process_flags(pretrain)
    pretrain.set_defaults(run=_pretrain, takes_settings=True)

    finetune = cli_finetune.add_command(commands, SOURCES)
    add_split_options(finetune)
    add_text_options(finetune)

    _add_evaluate(commands)

    export = commands.add_parser(
        "export",
        help="write a run's biLM for use elsewhere",
        description="Writes the frozen parameters, config and vocabulary of a run, for elmo_jax.load_bilm.",
        allow_abbrev=False,
    )
    export.add_argument("model", type=epath.Path, metavar="RUN", help="a run's folder")
    export.add_argument(
        "--step", default="last", metavar="N", help="a kept step, 'last' or 'best' (default: %(default)s)"
    )
    export.add_argument("--out", type=epath.Path, metavar="DIR", help="where to (default: RUN/export)")
    export.set_defaults(run=_export)
    cli_vectors.add_commands(commands)
    cli_compile.add_commands(commands)
    bench.add_command(commands)
    return parser


def _add_evaluate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    evaluate = commands.add_parser(
        "evaluate",
        help="perplexity of a biLM on a text",
        description="Prints the forward, backward and average perplexity of a biLM on a text, with the full softmax.",
        allow_abbrev=False,
    )
    evaluate.add_argument("model", type=epath.Path, metavar="RUN_OR_EXPORT", help="a run's folder or an exported biLM")
    evaluate.add_argument("--data", nargs="+", required=True, metavar="SOURCE", help=SOURCES)
    evaluate.add_argument("--per-sentence", type=Path, metavar="FILE", help="write each sentence's log-probabilities")
    evaluate.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    evaluate.add_argument(
        "--batch-size", type=int, metavar="N", help="rows the text is laid out in (default: as the model's own figure)"
    )
    add_text_options(evaluate)
    evaluate.set_defaults(run=_evaluate)


def _add_prepare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    prepare = commands.add_parser(
        "prepare",
        help="turn text into a corpus to train on",
        description="Counts words, chooses the vocabulary, sets a held-out part aside and writes encoded blocks.",
        allow_abbrev=False,
    )
    prepare.add_argument("sources", nargs="+", metavar="SOURCE", help=SOURCES)
    prepare.add_argument("--out", type=Path, required=True, metavar="DIR", help="the corpus's folder")
    prepare.add_argument("--vocab-size", type=int, metavar="V", help="at most so many words in the softmax")
    prepare.add_argument("--min-count", type=int, metavar="N", help="only words seen so often in training (default: 2)")
    prepare.add_argument("--vocab", type=Path, metavar="FILE", help="use this vocabulary, one word a line, as it is")
    prepare.add_argument(
        "--extend-vocab", type=Path, metavar="FILE", help="use this vocabulary, and behind it the words chosen as above"
    )
    add_split_options(prepare)
    add_text_options(prepare)
    prepare.set_defaults(run=_prepare)


def add_split_options(parser: argparse.ArgumentParser) -> None:
    """How text is prepared, beside its vocabulary."""
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
        "--workers", type=int, metavar="N", help="processes (default: one a core); the result is the same"
    )


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """How text is read."""
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


def _prepare(options: argparse.Namespace) -> int:
    from elmo_jax.data.prepare import describe, prepare

    corpus = prepare(
        options.sources,
        options.out,
        format=options.format,
        field=options.field,
        vocabulary_size=options.vocab_size,
        min_count=options.min_count,
        vocabulary_file=options.vocab,
        base_vocabulary_file=options.extend_vocab,
        heldout_fraction=options.heldout_fraction,
        heldout_sources=options.heldout,
        errors=options.errors,
        workers=options.workers,
    )
    print(describe(corpus))
    return 0


def _pretrain(options: argparse.Namespace) -> int:
    from elmo_jax.config_file import load_config

    config = load_config(options.config, options.overrides)  # a mistake in it is told before JAX is loaded
    name = options.config.stem.removeprefix("pretrain_")
    workdir = options.workdir or epath.Path("runs") / name
    with connected(options):
        from elmo_jax.training.launch import pretrain
        from elmo_jax.training.report import table
        from elmo_jax.training.signals import Stopped
        from elmo_jax.training.together import is_first

        ended = pretrain(config, workdir, name)
    if isinstance(ended, Stopped):
        if is_first():
            print(
                f"stopped by {ended.signal.name} at step {ended.step}, saved in {workdir};"
                " the same command goes on from there"
            )
        return 128 + ended.signal
    if is_first():
        if ended.already:
            print(f"this run is complete: {ended.result['steps']:,} steps, in {workdir}")
        print(f"\n{table(ended.result, workdir)}")
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from elmo_jax.training.evaluate_text import evaluate_text

    result = evaluate_text(
        options.model,
        options.data,
        format=options.format,
        field=options.field,
        errors=options.errors,
        batch_size=options.batch_size,
        per_sentence=options.per_sentence,
    )
    print(result.describe())
    if options.json:
        options.json.write_text(json.dumps(result.as_dict(), indent=2) + "\n")
    return 0


def _export(options: argparse.Namespace) -> int:
    from elmo_jax.training.run_folder import export_run

    out = export_run(options.model, options.step, options.out)
    print(f"exported to {out}; load it with elmo_jax.load_bilm({str(out)!r})")
    return 0
