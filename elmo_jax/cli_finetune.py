"""The command `finetune`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from etils import epath

from elmo_jax.errors import UserError
from elmo_jax.training.processes import add_process_flags, connected

Commands = argparse._SubParsersAction

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


def add_command(commands: Commands[argparse.ArgumentParser], sources: str) -> argparse.ArgumentParser:
    """Adds `finetune`; the caller adds how text is read. `sources` says what a text may be."""
    finetune = commands.add_parser(
        "finetune",
        help="go on training a biLM with the text of a domain",
        description="Fine-tunes a biLM on the text of a domain, and reports perplexity before and after, on the domain"
        " and on the text it was trained on. The same command goes on with a run that was stopped or killed.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    finetune.add_argument(
        "--from",
        dest="model",
        type=epath.Path,
        required=True,
        metavar="MODEL",
        help="a run's folder, an export, or weights.hdf5 with --options",
    )
    finetune.add_argument("--options", type=Path, metavar="FILE", help="the options.json of published weights")
    finetune.add_argument("--data", nargs="+", required=True, metavar="SOURCE", help=f"{sources}; or a prepared corpus")
    finetune.add_argument("--workdir", type=epath.Path, required=True, metavar="DIR", help="the run's folder")
    finetune.add_argument("--epochs", type=float, metavar="N", help="times that the text is read")
    finetune.add_argument("--config", type=Path, metavar="FILE", help="settings of the training, a Python file")
    finetune.add_argument(
        "--original",
        nargs="+",
        metavar="SOURCE",
        help="text to measure on what is forgotten (default: the held-out text of the run that the model is of)",
    )
    add_process_flags(finetune)
    finetune.set_defaults(run=_finetune, takes_settings=True)
    return finetune


def _finetune(options: argparse.Namespace) -> int:
    from elmo_jax.config_file import load_config

    config = None
    if options.config is not None:
        config = load_config(options.config, options.overrides)  # a mistake in it is told before JAX is loaded
    if options.epochs is not None and options.epochs < 0:
        raise UserError(f"--epochs: expected 0 or more, got {options.epochs:g}")
    with connected(options):
        from elmo_jax.training.finetune import Text, finetune
        from elmo_jax.training.signals import Stopped
        from elmo_jax.training.source_model import open_source
        from elmo_jax.training.together import is_first
        from elmo_jax.training.tuning_report import tuning_table

        source = open_source(options.model, options.options)
        if config is None:
            config = load_config(None, options.overrides, source.settings())
        if options.epochs is not None:
            train = dataclasses.replace(config.train, epochs=options.epochs, steps=0)
            config = dataclasses.replace(config, train=train)
        text = Text(
            options.data,
            options.format,
            options.field,
            options.errors,
            options.heldout_fraction,
            options.heldout,
            options.workers,
        )
        ended = finetune(source, config, text, options.workdir, options.workdir.name, options.original)
    if isinstance(ended, Stopped):
        if is_first():
            print(
                f"stopped by {ended.signal.name} at step {ended.step}, saved in {options.workdir};"
                " the same command goes on from there"
            )
        return 128 + ended.signal
    if is_first():
        if ended.already:
            print(f"this run is complete: {ended.result['steps']:,} steps, in {options.workdir}")
        print(f"\n{tuning_table(ended.result, options.workdir)}")
    return 0
