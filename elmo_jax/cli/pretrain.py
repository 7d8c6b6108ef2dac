"""The command `pretrain`."""

from __future__ import annotations

import argparse
from pathlib import Path

from etils import epath

from elmo_jax.cli.options import Commands, add_process_options, named_path
from elmo_jax.distributed.initialize import connected


def add_command(commands: Commands[argparse.ArgumentParser]) -> None:
    """Adds `pretrain`."""
    parser = commands.add_parser(
        "pretrain",
        help="train a biLM, or go on with a run",
        description="Trains a biLM. The same command goes on with a run that was stopped or killed.",
        epilog="every setting can be overridden: --config.train.batch_size=64 --config.data.corpus=data/mine",
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the experiment, a Python file")
    parser.add_argument(
        "--workdir", type=named_path, metavar="DIR", help="the run's folder (default: runs/NAME_OF_FILE)"
    )
    add_process_options(parser)
    parser.set_defaults(run=_pretrain, takes_settings=True)


def _pretrain(options: argparse.Namespace) -> int:
    from elmo_jax.config_file import load_config

    config = load_config(options.config, options.overrides)  # a mistake in it is told before JAX is loaded
    name = options.config.stem.removeprefix("pretrain_")
    workdir = options.workdir or epath.Path("runs") / name
    with connected(options.coordinator, options.processes, options.process, options.heartbeat):
        from elmo_jax.runs.report import tell_end
        from elmo_jax.training.launch import pretrain
        from elmo_jax.training.report import table

        return tell_end(pretrain(config, workdir, name), workdir, table)
