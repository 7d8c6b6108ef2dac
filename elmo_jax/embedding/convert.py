"""Writes published HDF5 weights, without ever overwriting another model."""

import os
from pathlib import Path

from elmo_jax.checkpoints.export import PretrainedBiLM
from elmo_jax.checkpoints.hdf5 import write_hdf5
from elmo_jax.checkpoints.layout import fingerprint, flatten
from elmo_jax.checkpoints.open import open_bilm
from elmo_jax.checkpoints.options import read_options
from elmo_jax.errors import UserError
from elmo_jax.files import make_folder_of


def export_hdf5(bilm: PretrainedBiLM, options: Path, weights: Path) -> None:
    """Writes a biLM in the published format, without its softmax.

    Args:
      bilm: the biLM.
      options: the path of `options.json`.
      weights: the path of `weights.hdf5`.

    Raises:
      UserError: both paths are the same, one of the files exists and is not this biLM, or it cannot be written.
    """
    check_names(options, weights)
    tree = {name: part for name, part in bilm.params.items() if name != "softmax"}
    there = [path for path in (weights, options) if path.exists()]
    if there:
        try:
            if weights.exists():
                same = open_bilm((options, weights)).fingerprint == fingerprint(flatten(tree))
            else:  # as left by a process that was killed before the weights were complete
                same = read_options(options) == bilm.config
        except UserError:
            same = False
        if not same:
            raise UserError(f"{there[0]}: exists, and is not this biLM; choose another name or remove it")
    for path in (options, weights):
        make_folder_of(path)
    write_hdf5(options, weights, bilm.config, tree)


def check_names(options: Path, weights: Path) -> None:
    """Raises `UserError` if the two files are one, or if their names say that they were exchanged."""
    if os.path.realpath(options) == os.path.realpath(weights):
        raise UserError(f"{options}: options and weights are two files; give each its own path")
    if options.suffix in (".hdf5", ".h5") or weights.suffix == ".json":
        raise UserError(f"{options} {weights}: expected first the options (.json) and then the weights (.hdf5)")
