"""The command that compiles the training step for devices that are not here."""

from __future__ import annotations

import argparse
import os

from elmo_jax.cli.options import Commands
from elmo_jax.cli.values import local, output, whole
from elmo_jax.files import write_json

# the words of the paper's 1 Billion Word model; its lexicon has more, all of which every device can spell
VOCABULARY_SIZE, WORD_TYPES = 793_471, 2_500_000


def add_command(commands: Commands[argparse.ArgumentParser]) -> None:
    """Adds `compile`."""
    parser = commands.add_parser(
        "compile",
        help="does a training fit on devices that are not here, and how fast might it be",
        description="Compiles the training step ahead of time for a TPU slice (with libtpu: pip install"
        " 'elmo_jax[tpu]') or a mesh of CPU devices, and shows the memory of a device, what is exchanged, and an"
        " estimate of the speed. Needs neither the devices nor the data.",
        epilog="every setting can be overridden: --config.train.batch_size=1024 --config.train.precision=bfloat16",
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=local, required=True, metavar="FILE", help="the experiment, a Python file")
    parser.add_argument(
        "--topology", required=True, metavar="CHIP:SHAPE", help="v4:2x2x2, v5e:16x16, v5p:4x4x4, v6e:8x8, …, or cpu:8"
    )
    parser.add_argument("--json", type=output, metavar="FILE", help="write the figures")
    corpus = "default: as the experiment's corpus, or, where that is not prepared here,"
    parser.add_argument(
        "--vocab-size",
        type=whole(4),
        metavar="V",
        help=f"words of the softmax ({corpus} {VOCABULARY_SIZE:,}, the paper's)",
    )
    parser.add_argument(
        "--word-types", type=whole(4), metavar="N", help=f"words of the lexicon ({corpus} V or {WORD_TYPES:,})"
    )
    parser.set_defaults(run=_compile, takes_settings=True)


def _compile(options: argparse.Namespace) -> int:
    from elmo_jax.config_file import load_config

    config = load_config(options.config, options.overrides)
    _prepare_environment(options.topology)
    from elmo_jax.aot.command import compile_for

    outcome = compile_for(
        options.config.stem.removeprefix("pretrain_"),
        config,
        options.topology,
        vocabulary_size=options.vocab_size,
        word_types=options.word_types,
        defaults=(VOCABULARY_SIZE, WORD_TYPES),
    )
    print(outcome.describe())
    if options.json:
        write_json(options.json, outcome.as_dict())
    return 0 if outcome.fits else 1


def _prepare_environment(topology: str) -> None:
    """What JAX finds when it is loaded: no accelerator, since none is needed, and as many CPU devices as asked for."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    name, _, count = topology.partition(":")
    flags = os.environ.get("XLA_FLAGS", "")
    if name == "cpu" and count.isdigit() and "xla_force_host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}".strip()
