"""The commands `import-hdf5` and `export-hdf5`: the published format, in and out."""

from __future__ import annotations

import argparse
from pathlib import Path

from elmo_jax.cli.options import Commands, named_path


def add_commands(commands: Commands[argparse.ArgumentParser]) -> None:
    """Adds `import-hdf5` and `export-hdf5`."""
    importer = commands.add_parser(
        "import-hdf5",
        help="take a published biLM",
        description="Writes the export of a published biLM, for elmo_jax.load_bilm. Bit-equal.",
        allow_abbrev=False,
    )
    importer.add_argument("options", type=Path, metavar="options.json")
    importer.add_argument("weights", type=Path, metavar="weights.hdf5")
    importer.add_argument("out", type=Path, metavar="OUT", help="the export's folder")
    importer.set_defaults(run=_import_hdf5)

    exporter = commands.add_parser(
        "export-hdf5",
        help="write a biLM as published",
        description="Writes a biLM in the published format, which the original and AllenNLP read. Without the softmax.",
        allow_abbrev=False,
    )
    exporter.add_argument("model", type=named_path, metavar="MODEL", help="a run's folder or an exported biLM")
    exporter.add_argument("weights", type=Path, metavar="weights.hdf5")
    exporter.add_argument("options", type=Path, metavar="options.json")
    exporter.set_defaults(run=_export_hdf5)


def _import_hdf5(options: argparse.Namespace) -> int:
    from elmo_jax.embedding.convert import import_hdf5

    bilm = import_hdf5(options.options, options.weights, options.out)
    print(f"imported to {options.out} (fingerprint {bilm.fingerprint[:12]}); elmo_jax.load_bilm({str(options.out)!r})")
    return 0


def _export_hdf5(options: argparse.Namespace) -> int:
    from elmo_jax.checkpoints.open import open_bilm
    from elmo_jax.embedding.convert import export_hdf5

    export_hdf5(open_bilm(options.model), options.weights, options.options)
    print(f"written: {options.weights}, {options.options}")
    return 0
