"""The parameter tree's layout: keys and shapes, the versioned interface that users freeze, store and load.

Shapes: `E` size of a character's vector, `n` filters of one width, `F` filters in all, `P` projection, `C` cells,
`V` words of the softmax.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from elmo_jax.characters import CHARACTERS
from elmo_jax.config import ModelConfig
from elmo_jax.errors import UserError

LAYOUT_VERSION = 1  # raise it with any change of a key, a shape or the meaning of a number


def parameter_shapes(model: ModelConfig, vocabulary_size: int | None = None) -> dict[str, tuple[int, ...]]:
    """The golden list: key path, parts joined by `/`, -> shape.

    Args:
      model: the architecture.
      vocabulary_size: V; None for a tree without the softmax, as the published HDF5 files hold it.
    """
    cnn, lstm = model.char_cnn, model.lstm
    features, projection, cells = cnn.features, lstm.projection, lstm.cells
    shapes: dict[str, tuple[int, ...]] = {"token_encoder/char_embedding": (CHARACTERS, cnn.embedding_dim)}
    for i, (width, number) in enumerate(cnn.filters):
        shapes[f"token_encoder/filter_{i}/kernel"] = (width, cnn.embedding_dim, number)
        shapes[f"token_encoder/filter_{i}/bias"] = (number,)
    for i in range(cnn.highways):
        for part in ("carry", "transform"):
            shapes[f"token_encoder/highway_{i}/{part}/kernel"] = (features, features)
            shapes[f"token_encoder/highway_{i}/{part}/bias"] = (features,)
    if features != projection:
        shapes["token_encoder/projection/kernel"] = (features, projection)
        shapes["token_encoder/projection/bias"] = (projection,)
    for direction in ("forward", "backward"):
        for j in range(lstm.layers):
            shapes[f"{direction}/layer_{j}/kernel"] = (2 * projection, 4 * cells)
            shapes[f"{direction}/layer_{j}/bias"] = (4 * cells,)
            if cells != projection:
                shapes[f"{direction}/layer_{j}/projection"] = (cells, projection)
    if vocabulary_size is not None:
        shapes["softmax/kernel"] = (vocabulary_size, projection)
        shapes["softmax/bias"] = (vocabulary_size,)
    return shapes


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dict -> {key path joined by `/`: leaf}."""
    flat: dict[str, Any] = traverse_util.flatten_dict(tree, sep="/")
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten`, as plain dicts."""
    tree: dict[str, Any] = traverse_util.unflatten_dict(flat, sep="/")
    return tree


def check_shapes(found: Mapping[str, tuple[int, ...]], model: ModelConfig, where: str) -> None:
    """Raises `UserError` where a tree's shapes are not those of `model` (with or without a softmax).

    Args:
      found: key path -> shape.
      where: what the tree came from, for the message.
    """
    kernel = found.get("softmax/kernel", ())
    expected = parameter_shapes(model, kernel[0] if kernel else None)
    for path in sorted(expected.keys() | found.keys()):
        if path not in found:
            raise UserError(f"{where}: parameter '{path}' is missing; expected shape {expected[path]}")
        if path not in expected:
            raise UserError(f"{where}: parameter '{path}' has no place in a model of this config; found {found[path]}")
        if tuple(found[path]) != expected[path]:
            raise UserError(f"{where}: parameter '{path}' has shape {tuple(found[path])}, expected {expected[path]}")


def fingerprint(flat: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over the sorted key paths, each with its dtype, shape and bytes (C order, little-endian).

    Two trees have the same fingerprint where they are equal bit for bit.
    """
    digest = hashlib.sha256()
    for path in sorted(flat):
        array = np.asarray(flat[path])
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        digest.update(f"{path} {array.dtype.name} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
