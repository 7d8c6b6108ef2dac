"""Converts published HDF5 weights to an export and back, without ever overwriting another model."""

from __future__ import annotations

from pathlib import Path

from elmo_jax.checkpoints.export import PretrainedBiLM, export_bilm
from elmo_jax.checkpoints.hdf5 import write_hdf5
from elmo_jax.checkpoints.layout import fingerprint, flatten
from elmo_jax.checkpoints.open import open_bilm
from elmo_jax.errors import UserError


def import_hdf5(options: Path, weights: Path, out: Path) -> PretrainedBiLM:
    """Converts a published biLM to an export in the folder `out`, and returns it.

    Raises:
      UserError: a file does not have the published format, or `out` holds another biLM or something else.
    """
    bilm = open_bilm((options, weights))
    if (out / "bilm.json").exists() and open_bilm(out).fingerprint != bilm.fingerprint:
        raise UserError(f"{out}: holds the export of another biLM; choose another folder")
    export_bilm(out, bilm.config, bilm.params, None, {"imported_from": weights.name})
    return bilm


def export_hdf5(bilm: PretrainedBiLM, weights: Path, options: Path) -> None:
    """Writes a biLM in the published format, without its softmax.

    Raises:
      UserError: one of the files exists and is not this biLM, or it cannot be written.
    """
    tree = {name: part for name, part in bilm.params.items() if name != "softmax"}
    there = [path for path in (weights, options) if path.exists()]
    if there:
        try:
            same = open_bilm((options, weights)).fingerprint == fingerprint(flatten(tree))
        except UserError:
            same = False
        if not same:
            raise UserError(f"{there[0]}: exists, and is not this biLM; choose another name or remove it")
    weights.parent.mkdir(parents=True, exist_ok=True)
    options.parent.mkdir(parents=True, exist_ok=True)
    write_hdf5(weights, options, bilm.config, tree)
