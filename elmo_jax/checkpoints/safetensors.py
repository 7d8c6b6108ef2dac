"""Writes and reads a biLM as one safetensors file, which programs of other frameworks read as well.

The tensors are named by their key paths (`forward/layer_0/kernel`). The file's metadata has the key `elmo_jax` with a
JSON object (the version of the layout, the architecture, the fingerprint, the vocabulary, which is null without a
softmax, and the provenance) and the key `sha256` with the SHA-256 of that object's text.

Parameters may be stored in float16; they are float32 once they have been read, and the fingerprint is that of the
parameters as they are read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from elmo_jax.checkpoints.export import PretrainedBiLM
from elmo_jax.checkpoints.layout import LAYOUT_VERSION, check_shapes, fingerprint, flatten, unflatten
from elmo_jax.config import ModelConfig
from elmo_jax.errors import UserError
from elmo_jax.files import atomic_file
from elmo_jax.settings import from_dict, to_dict

SUFFIX = ".safetensors"
_KEY, _DIGEST = "elmo_jax", "sha256"
_DTYPES = ("F16", "F32")

Dtype = Literal["float32", "float16"]


def is_safetensors(path: Path) -> bool:
    """Returns whether a path is a file with the suffix of safetensors files."""
    return path.suffix == SUFFIX and path.is_file()


def write_safetensors(path: Path, bilm: PretrainedBiLM, dtype: Dtype = "float32", softmax: bool = True) -> str:
    """Writes a biLM as one file; an older file at `path` is replaced once the new one is complete.

    Args:
      path: the file to make, with the suffix `.safetensors`.
      bilm: the biLM.
      dtype: the type of the stored numbers. The rounding to float16 has a relative error of at most 2^-11.
      softmax: whether the softmax and its vocabulary are written, if the biLM has them.

    Returns:
      The fingerprint of the parameters as `read_safetensors` returns them.

    Raises:
      UserError: the path has another suffix or cannot be written, or a number is too large for float16.
    """
    if path.suffix != SUFFIX:
        raise UserError(f"{path}: expected a file name that ends in {SUFFIX}")
    flat = {key: np.asarray(leaf, np.float32) for key, leaf in flatten(bilm.params).items()}
    if not softmax:
        flat = {key: leaf for key, leaf in flat.items() if not key.startswith("softmax/")}
    with np.errstate(over="ignore"):  # the check of each parameter gives a better message
        # The file is written from memory as it lies, so that the rows must be adjacent.
        stored = {key: leaf.astype(dtype, order="C") for key, leaf in flat.items()}
    for key, leaf in stored.items():
        if not np.isfinite(leaf).all():
            raise UserError(f"{path}: parameter '{key}' has numbers that {dtype} cannot hold; use --dtype float32")
    digest = fingerprint({key: leaf.astype(np.float32) for key, leaf in stored.items()})
    description = {
        "layout": LAYOUT_VERSION,
        "model": to_dict(bilm.config),
        "fingerprint": digest,
        "vocabulary": bilm.vocabulary if softmax else None,
        "info": bilm.info,
    }
    text = json.dumps(description)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            save_file(stored, str(temporary), {_KEY: text, _DIGEST: _sha256(text)})
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be written: {' '.join(str(error).split())}") from error
    return digest


def read_safetensors(path: Path) -> PretrainedBiLM:
    """Reads a biLM that `write_safetensors` has written, with float32 parameters.

    Raises:
      UserError: the file is not a biLM, is damaged, or has another layout version.
    """
    try:
        with safe_open(str(path), "numpy") as file:
            description = _description(path, file.metadata())
            model = from_dict(description["model"], ModelConfig, f"{path}: model")
            slices = {key: file.get_slice(key) for key in file.keys()}
            shapes = {key: tuple(found.get_shape()) for key, found in slices.items()}
            check_shapes(shapes, model, str(path))
            for key, found in slices.items():
                if found.get_dtype() not in _DTYPES:
                    raise UserError(f"{path}: '{key}' is {found.get_dtype()}; expected {' or '.join(_DTYPES)}")
            flat = {key: file.get_tensor(key).astype(np.float32) for key in slices}
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: not a safetensors file that can be read ({reason})") from error
    digest = fingerprint(flat)
    if digest != description["fingerprint"]:
        raise UserError(f"{path}: the parameters are not those that were written (fingerprint); get the file again")
    vocabulary = description["vocabulary"]
    rows = shapes.get("softmax/kernel", (None,))[0]
    if vocabulary is not None and len(vocabulary) != rows:
        raise UserError(f"{path}: a vocabulary of {len(vocabulary)} words for a softmax of {rows or 'no'} rows")
    return PretrainedBiLM(model, unflatten(flat), vocabulary, description["info"], digest)


def _description(path: Path, metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """Returns what the metadata says, after its digest, its keys and their types have been checked."""
    metadata = metadata or {}
    if _KEY not in metadata:
        raise UserError(
            f"{path}: not a biLM of elmo_jax; expected a file that elmo-jax export --format safetensors has written"
        )
    if metadata.get(_DIGEST) != _sha256(metadata[_KEY]):
        raise UserError(f"{path}: damaged (the metadata '{_KEY}' is not what was written); get the file again")
    found = json.loads(metadata[_KEY])
    layout = found.get("layout") if isinstance(found, dict) else None
    if layout != LAYOUT_VERSION:
        raise UserError(f"{path}: layout version {layout!r}, this elmo_jax reads {LAYOUT_VERSION}")
    expected: dict[str, tuple[type, ...]] = {
        "model": (dict,),
        "fingerprint": (str,),
        "vocabulary": (list, type(None)),
        "info": (dict,),
    }
    for key, kinds in expected.items():
        if not isinstance(found.get(key), kinds) or (key == "vocabulary" and not _are_words(found[key])):
            raise UserError(f"{path}: '{key}' of the metadata is missing or damaged; get the file again")
    return dict(found)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _are_words(vocabulary: list[Any] | None) -> bool:
    return vocabulary is None or all(isinstance(word, str) for word in vocabulary)


def without_softmax(bilm: PretrainedBiLM) -> PretrainedBiLM:
    """Returns a biLM without its softmax and vocabulary."""
    params = {name: tree for name, tree in bilm.params.items() if name != "softmax"}
    return dataclasses.replace(bilm, params=params, vocabulary=None, fingerprint=fingerprint(flatten(params)))
