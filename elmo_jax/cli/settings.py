"""Defines the command `settings`."""

import argparse
import textwrap
import typing
from typing import Any

from elmo_jax.cli.options import Commands
from elmo_jax.cli.values import local

_WIDTH = 100


def add_command(commands: Commands) -> None:
    """Adds the command `settings`."""
    parser = commands.add_parser(
        "settings",
        help="list every setting of an experiment",
        description="Lists every setting with its default, the value that an experiment file gives it, its range and"
        " its meaning. Without a file, the settings of a biLM's training are listed.",
    )
    parser.add_argument("file", nargs="?", type=local, metavar="FILE", help="the Python file of an experiment")
    parser.add_argument("--task", metavar="NAME", help="list the defaults of a task (pos, … or MODULE:ATTRIBUTE)")
    parser.set_defaults(run=_settings, takes_settings=True)


def _settings(options: argparse.Namespace) -> int:
    from ml_collections import ConfigDict

    from elmo_jax.config import Config
    from elmo_jax.config_file import load_file, with_overrides
    from elmo_jax.errors import UserError
    from elmo_jax.settings import from_dict, to_dict, walk
    from elmo_jax.tasks.registry import default_config, task_config

    if options.file is not None and options.task is not None:
        raise UserError("--task: give a file or a task, not both")
    if options.file is not None:
        loaded = load_file(options.file, options.overrides)
    else:
        loaded = default_config(options.task) if options.task else ConfigDict(to_dict(Config())).lock()
    loaded = with_overrides(loaded, options.overrides)
    config = task_config(loaded) if "task" in loaded else from_dict(loaded, Config)
    for key, value, field, kind in walk(config):
        notes = [] if value == field.default else [f"default {_shown(field.default)}"]
        if typing.get_origin(kind) is typing.Literal:
            notes.append(" or ".join(map(repr, typing.get_args(kind))))
        elif kind in (int, float):
            notes.append(str(field.metadata["range"]))
        print(f"{key} = {_shown(value)}" + (f"  ({'; '.join(notes)})" if notes else ""))
        print(textwrap.fill(field.metadata["sentence"], _WIDTH, initial_indent="    ", subsequent_indent="    "))
    return 0


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000 else repr(value)
