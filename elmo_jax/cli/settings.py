"""Defines the commands `settings` and `compile`, which read an experiment and train nothing."""

import argparse
import contextlib
import os
import textwrap
import typing
from typing import Any

from elmo_jax.cli.options import Commands
from elmo_jax.cli.values import local, output, whole
from elmo_jax.errors import UserError
from elmo_jax.files import write_json

_WIDTH = 100
# The vocabulary of the paper's 1 Billion Word model, and about the number of distinct words of its corpus.
VOCABULARY_SIZE, WORD_TYPES = 793_471, 2_500_000


def add_command(commands: Commands) -> None:
    """Adds the commands `settings` and `compile`."""
    parser = commands.add_parser(
        "settings",
        help="list every setting of an experiment",
        description="Lists every setting with its default, the value that an experiment file gives it, its range and"
        " its meaning. Without a file, the settings of a biLM's training are listed.",
    )
    parser.add_argument("file", nargs="?", type=local, metavar="FILE", help="the Python file of an experiment")
    parser.add_argument("--task", metavar="NAME", help="list the defaults of a task (pos, … or MODULE:ATTRIBUTE)")
    parser.set_defaults(run=_settings, takes_settings=True)

    parser = commands.add_parser(
        "compile",
        help="estimate memory and speed of a training on other devices",
        description="Compiles the training step ahead of time for a TPU slice (with libtpu: pip install"
        " 'elmo_jax[tpu]') or a mesh of CPU devices, and prints the memory per device, the bytes exchanged, and an"
        " estimate of the speed. Needs neither the devices nor the data. The exit status is 1 if the training does not"
        " fit.",
        epilog="Every setting can be overridden: --config.train.batch_size=1024 --config.train.precision=bfloat16",
    )
    parser.add_argument("--config", type=local, required=True, metavar="FILE", help="the Python file of the experiment")
    topology = "v4:2x2x2, v5e:16x16, v5p:4x4x4, v6e:8x8, …, or cpu:8"
    parser.add_argument("--topology", required=True, metavar="CHIP:SHAPE", help=topology)
    parser.add_argument("--json", type=output, metavar="FILE", help="write the metrics to FILE as JSON")
    words = f"number of words of the softmax (default: that of the corpus, if it is here, or {VOCABULARY_SIZE:,})"
    parser.add_argument("--vocab-size", type=whole(4), metavar="V", help=words)
    parser.set_defaults(run=_compile, takes_settings=True)


def _settings(options: argparse.Namespace) -> int:
    from ml_collections import ConfigDict

    from elmo_jax.config import Config
    from elmo_jax.config_file import load_file, with_overrides
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


def _compile(options: argparse.Namespace) -> int:
    from elmo_jax.config_file import load_config

    config = load_config(options.config, options.overrides)
    # JAX needs no accelerator, and as many CPU devices as the topology has.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    kind, _, count = options.topology.partition(":")
    flags = os.environ.get("XLA_FLAGS", "")
    if kind == "cpu" and count.isdecimal() and "xla_force_host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}".strip()
    from elmo_jax.aot.compile_report import Report
    from elmo_jax.aot.step import compile_step, find_target
    from elmo_jax.data.corpus import Corpus
    from elmo_jax.distributed.mesh import make_mesh
    from elmo_jax.training.partitioning import with_precision
    from elmo_jax.training.setup import check_negatives

    target = find_target(options.topology)
    config = with_precision(config, make_mesh(target.devices))
    vocabulary_size, word_types = options.vocab_size, options.vocab_size
    if vocabulary_size is None:
        vocabulary_size, word_types = VOCABULARY_SIZE, WORD_TYPES
        with contextlib.suppress(UserError):  # the command needs no data
            lexicon = Corpus.open(config.data.corpus).report["lexicon"]
            vocabulary_size, word_types = lexicon["vocabulary_size"], lexicon["types"]
    check_negatives(config, vocabulary_size)
    compiled = compile_step(config, target, vocabulary_size, word_types)
    name = options.config.stem.removeprefix("pretrain_")
    report = Report(name, config, target, vocabulary_size, word_types, compiled)
    print(report.describe())
    if options.json:
        write_json(options.json, report.as_dict())
    return 0 if report.fits else 1
