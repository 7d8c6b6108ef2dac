"""Defines the command `compile`, which compiles the training step for devices that this machine does not have."""

import argparse
import contextlib
import os

from elmo_jax.cli.options import Commands
from elmo_jax.cli.values import local, output, whole
from elmo_jax.errors import UserError
from elmo_jax.files import write_json

# The vocabulary of the paper's 1 Billion Word model, and about the number of distinct words of its corpus.
VOCABULARY_SIZE, WORD_TYPES = 793_471, 2_500_000


def add_command(commands: Commands) -> None:
    """Adds the command `compile`."""
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


def _compile(options: argparse.Namespace) -> int:
    from elmo_jax.config_file import load_config

    config = load_config(options.config, options.overrides)
    # JAX needs no accelerator, and as many CPU devices as the topology has.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    kind, _, count = options.topology.partition(":")
    flags = os.environ.get("XLA_FLAGS", "")
    if kind == "cpu" and count.isdigit() and "xla_force_host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}".strip()
    from elmo_jax.aot.compile_report import Report
    from elmo_jax.aot.step import compile_step, find_target
    from elmo_jax.data.corpus import Corpus
    from elmo_jax.distributed.mesh import make_mesh
    from elmo_jax.training.checks import check_negatives
    from elmo_jax.training.partitioning import with_precision

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
