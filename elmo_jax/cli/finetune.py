"""Defines the command `finetune`."""

import argparse
import dataclasses
from typing import TYPE_CHECKING

from elmo_jax.cli.options import (
    SOURCES,
    Commands,
    add_model_options,
    add_process_options,
    add_split_options,
    add_text_options,
    model_source,
    text_options,
)
from elmo_jax.cli.values import anywhere, local, number, source
from elmo_jax.distributed.initialize import connected
from elmo_jax.errors import UserError

if TYPE_CHECKING:
    from elmo_jax.config import Config

DESCRIPTION = """\
Fine-tunes a biLM on the text of a domain, and reports its perplexity before and after, on the domain and on the text
that it was trained on. If a run was stopped or killed, run the command again to resume it.
"""
EPILOG = """\
Settings are given as --config.KEY=VALUE or in the --config file. Without a file, they are the defaults for one
epoch, with the batch, the optimizer and the precision that the model was trained with.
`elmo-jax settings` lists them with their meaning; those of `finetune` apply to fine-tuning only.
"""


def add_command(commands: Commands) -> None:
    """Adds the command `finetune`."""
    parser = commands.add_parser(
        "finetune",
        help="fine-tune a biLM on the text of a domain",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_options(parser, "--from")
    parser.add_argument(
        "--data", nargs="+", type=source, required=True, metavar="SOURCE", help=f"{SOURCES}; or a prepared corpus"
    )
    parser.add_argument("--workdir", type=anywhere, required=True, metavar="DIR", help="the run's folder")
    parser.add_argument("--epochs", type=number(0, 1e6), metavar="N", help="number of times that the text is read")
    parser.add_argument("--config", type=local, metavar="FILE", help="a Python file with the settings of the training")
    parser.add_argument(
        "--original",
        nargs="+",
        type=source,
        metavar="SOURCE",
        help="text on which forgetting is measured (default: the held-out text of the run that trained the model)",
    )
    add_process_options(parser)
    add_split_options(parser)
    add_text_options(parser)
    parser.set_defaults(run=_finetune, takes_settings=True)


def _finetune(options: argparse.Namespace) -> int:
    with connected(options.coordinator, options.processes, options.process, options.heartbeat):
        from elmo_jax.config_file import load_config
        from elmo_jax.data.prepare.options import PrepareOptions
        from elmo_jax.distributed.collectives import check_equal, raise_on_all
        from elmo_jax.distributed.cpu import divide_cpu
        from elmo_jax.finetuning.finetune import Text, finetune
        from elmo_jax.finetuning.recipe import table
        from elmo_jax.finetuning.source import open_source
        from elmo_jax.runs.result import print_summary

        with raise_on_all():
            if options.config is not None:
                config = load_config(options.config, options.overrides)
            source = open_source(model_source(options))
            if options.config is None:
                adam = "--config.train.optimizer.name=adam" in options.overrides
                config = load_config(None, options.overrides, source.settings(adam))
            _check_together(options, config)
        check_equal(source.bilm.fingerprint, "parameters of the model")
        if options.epochs is not None:
            train = dataclasses.replace(config.train, epochs=options.epochs, steps=0)
            config = dataclasses.replace(config, train=train)
        divide_cpu(source.bilm.config.lstm, config.train.batch_size // config.train.accumulate)
        text = Text(
            options.data,
            PrepareOptions(
                text_options(options),
                heldout_fraction=options.heldout_fraction,
                heldout_sources=options.heldout,
                workers=options.workers,
            ),
        )
        ended = finetune(source, config, text, options.workdir, options.workdir.name, options.original)
        return print_summary(ended, options.workdir, table)


def _check_together(options: argparse.Namespace, config: "Config") -> None:
    given = {override.split("=")[0] for override in options.overrides}
    if options.epochs is not None and "--config.train.steps" in given and config.train.steps:
        raise UserError("--epochs: --config.train.steps already says how long to train; give one of them")
    every, number = "--config.evaluation.every", config.finetune.evaluations
    if every in given and config.evaluation.every and number:
        raise UserError(f"{every}: has no effect, as config.finetune.evaluations is {number}; set that to 0")
