"""Defines the command `pretrain`."""

import argparse

from etils import epath

from elmo_jax.cli.options import Commands, add_process_options
from elmo_jax.cli.values import anywhere, local
from elmo_jax.distributed.initialize import connected


def add_command(commands: Commands) -> None:
    """Adds the command `pretrain`."""
    parser = commands.add_parser(
        "pretrain",
        help="pretrain a biLM, or resume a run",
        description="Pretrains a biLM. If a run was stopped or killed, run the command again to resume it.",
        epilog="Every setting can be overridden (--config.train.batch_size=64 --config.data.corpus=data/mine); elmo-jax"
        " settings FILE lists them all.",
    )
    parser.add_argument("--config", type=local, required=True, metavar="FILE", help="the Python file of the experiment")
    parser.add_argument("--workdir", type=anywhere, metavar="DIR", help="the run's folder (default: runs/NAME_OF_FILE)")
    add_process_options(parser)
    parser.set_defaults(run=_pretrain, takes_settings=True)


def _pretrain(options: argparse.Namespace) -> int:
    name = options.config.stem.removeprefix("pretrain_")
    workdir = options.workdir or epath.Path("runs") / name
    with connected(options.coordinator, options.processes, options.process, options.heartbeat):
        from elmo_jax.config_file import load_config
        from elmo_jax.distributed.cpu import divide_cpu
        from elmo_jax.runs.result import print_summary
        from elmo_jax.training.pretrain import pretrain
        from elmo_jax.training.training_report import table

        # The processes are connected already, so that jax.device_count() in the file counts the devices of all of them.
        config = load_config(options.config, options.overrides)
        divide_cpu(config.model.lstm, config.train.batch_size // config.train.accumulate)
        return print_summary(pretrain(config, workdir, name), workdir, table)
