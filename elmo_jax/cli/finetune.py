"""The command `finetune`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from elmo_jax.cli.options import (
    SOURCES,
    Commands,
    add_model_options,
    add_process_options,
    add_split_options,
    add_text_options,
    model_source,
    named_path,
    text_options,
)
from elmo_jax.distributed.initialize import connected
from elmo_jax.errors import UserError

EPILOG = """\
settings, each as --config.KEY=VALUE or in the --config file; without a file they are those the model was trained with,
for one epoch:
  finetune.vocabulary     keep (default), or extend: words of the domain are added to the model's
  finetune.min_count      words added, or taken for published weights, are seen so often (2)
  finetune.trainable      all (default), all_but_token_encoder, softmax
  finetune.patience       held-out evaluations without a lower perplexity that end the training (3); 0: never
  finetune.evaluations    so many an epoch (4)
  finetune.softmax_epochs epochs on a softmax of its own, for published weights, which have none (1)
"""


def add_command(commands: Commands[argparse.ArgumentParser]) -> None:
    """Adds `finetune`."""
    parser = commands.add_parser(
        "finetune",
        help="go on training a biLM with the text of a domain",
        description="Fine-tunes a biLM on the text of a domain, and reports perplexity before and after, on the domain"
        " and on the text it was trained on. The same command goes on with a run that was stopped or killed.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_model_options(parser, "--from")
    parser.add_argument("--data", nargs="+", required=True, metavar="SOURCE", help=f"{SOURCES}; or a prepared corpus")
    parser.add_argument("--workdir", type=named_path, required=True, metavar="DIR", help="the run's folder")
    parser.add_argument("--epochs", type=float, metavar="N", help="how often the text is read")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings of the training, a Python file")
    parser.add_argument(
        "--original",
        nargs="+",
        metavar="SOURCE",
        help="text to measure on what is forgotten (default: the held-out text of the run that the model is of)",
    )
    add_process_options(parser)
    add_split_options(parser)
    add_text_options(parser)
    parser.set_defaults(run=_finetune, takes_settings=True)


def _finetune(options: argparse.Namespace) -> int:
    from elmo_jax.config_file import load_config

    config = None
    if options.config is not None:
        config = load_config(options.config, options.overrides)  # a mistake in it is told before JAX is loaded
    if options.epochs is not None and not 0 <= options.epochs <= 1e6:  # as of train.epochs
        raise UserError(f"--epochs: expected a number of at least 0 and at most 1,000,000, got {options.epochs:g}")
    with connected(options.coordinator, options.processes, options.process, options.heartbeat):
        from elmo_jax.finetuning.finetune import Text, finetune
        from elmo_jax.finetuning.report import table
        from elmo_jax.finetuning.source import open_source
        from elmo_jax.runs.report import tell_end

        source = open_source(model_source(options))
        if config is None:
            config = load_config(None, options.overrides, source.settings())
        if options.epochs is not None:
            train = dataclasses.replace(config.train, epochs=options.epochs, steps=0)
            config = dataclasses.replace(config, train=train)
        text = Text(options.data, text_options(options), options.heldout_fraction, options.heldout, options.workers)
        ended = finetune(source, config, text, options.workdir, options.workdir.name, options.original)
        return tell_end(ended, options.workdir, table)
