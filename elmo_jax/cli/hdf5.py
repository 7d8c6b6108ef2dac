"""Defines the commands `import-hdf5` and `export-hdf5`, which read and write the published format."""

import argparse
import sys

from elmo_jax.cli.options import Commands
from elmo_jax.cli.values import bilm, downloaded, local


def add_commands(commands: Commands) -> None:
    """Adds the commands `import-hdf5` and `export-hdf5`."""
    importer = commands.add_parser(
        "import-hdf5",
        help="convert published weights to an export",
        description="Converts a published biLM to an export for elmo_jax.load_bilm, with bit-equal parameters.",
    )
    importer.add_argument("options", type=downloaded, metavar="options.json", help="the published options")
    importer.add_argument("weights", type=downloaded, metavar="weights.hdf5", help="the published weights")
    importer.add_argument(
        "out", type=local, metavar="OUT", help="the export, a folder or a file that ends in .safetensors"
    )
    importer.set_defaults(run=_import_hdf5)

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


def _import_hdf5(options: argparse.Namespace) -> int:
    from elmo_jax.embedding.convert import import_hdf5

    bilm = import_hdf5(options.options, options.weights, options.out)
    load = f"load it with elmo_jax.load_bilm({str(options.out)!r})"
    print(f"imported to {options.out} (fingerprint {bilm.fingerprint[:12]}); {load}")
    return 0


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
