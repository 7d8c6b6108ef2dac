"""Defines the command `export-hdf5`, which writes the published format."""

import argparse
import sys

from elmo_jax.cli.options import Commands
from elmo_jax.cli.values import bilm, local


def add_command(commands: Commands) -> None:
    """Adds the command `export-hdf5`."""
    exporter = commands.add_parser(
        "export-hdf5",
        help="convert a biLM to the published format",
        description="Writes a biLM without its softmax in the published format, which bilm-tf reads, and"
        " AllenNLP unless the command prints what it cannot read.",
    )
    exporter.add_argument("model", type=bilm, metavar="MODEL", help="a run's folder or an export")
    exporter.add_argument("options", type=local, metavar="options.json", help="the options to write")
    exporter.add_argument("weights", type=local, metavar="weights.hdf5", help="the weights to write")
    exporter.set_defaults(run=_export_hdf5)


def _export_hdf5(options: argparse.Namespace) -> int:
    from elmo_jax.checkpoints.hdf5 import unreadable_by_allennlp
    from elmo_jax.checkpoints.open import open_bilm
    from elmo_jax.embedding.convert import check_names, export_hdf5

    check_names(options.options, options.weights)  # before the biLM is read
    bilm = open_bilm(options.model)
    export_hdf5(bilm, options.options, options.weights)
    problems = unreadable_by_allennlp(bilm.config)
    if problems:
        print(f"elmo-jax: AllenNLP cannot read this biLM: {'; '.join(problems)}", file=sys.stderr)
    print(f"wrote {options.options} and {options.weights}")
    return 0
