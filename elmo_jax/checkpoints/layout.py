"""The parameter tree: its keys and shapes, a versioned interface for users who freeze, store and load it."""

import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from elmo_jax.config import ModelConfig
from elmo_jax.errors import UserError
from elmo_jax.model.bilm import BiLM, initial_params

LAYOUT_VERSION = 1  # must be increased with any change of a key, a shape or the meaning of a number


@functools.cache
def parameter_shapes(model: ModelConfig, vocabulary_size: int | None = None) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter by its key path; without `vocabulary_size`, of a tree without softmax."""
    bilm = BiLM(model, vocabulary_size or 0)
    # With this generator, drawing is one operation; with others it is thousands for the sizes that a file may claim.
    tree = jax.eval_shape(lambda: initial_params(bilm, jax.random.key(0, impl="unsafe_rbg")))
    return {path: leaf.shape for path, leaf in flatten(tree).items()}


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the leaves of a nested dict by their key paths, joined by `/`."""
    return traverse_util.flatten_dict(tree, sep="/")


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the plain nested dict that `flatten` turns into `flat`."""
    return traverse_util.unflatten_dict(flat, sep="/")


def check_shapes(actual: Mapping[str, tuple[int, ...]], model: ModelConfig, where: str) -> None:
    """Raises `UserError` if the shapes by key path are not those of `model`, with or without a softmax."""
    kernel = actual.get("softmax/kernel", ())
    expected = parameter_shapes(model, kernel[0] if kernel else None)
    for path in sorted(expected.keys() | actual.keys()):
        if path not in actual:
            raise UserError(f"{where}: parameter '{path}' is missing; expected shape {expected[path]}")
        if path not in expected:
            raise UserError(f"{where}: parameter '{path}' has no place in a model of this config; found {actual[path]}")
        if tuple(actual[path]) != expected[path]:
            raise UserError(f"{where}: parameter '{path}' has shape {tuple(actual[path])}, expected {expected[path]}")


def fingerprint(flat: Mapping[str, np.ndarray]) -> str:
    """Returns the SHA-256 over the sorted key paths, each with its dtype, shape and bytes (C order, little-endian).

    Two trees that are equal bit for bit have the same fingerprint.
    """
    digest = hashlib.sha256()
    for path in sorted(flat):
        array = np.asarray(flat[path])
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        digest.update(f"{path} {array.dtype.name} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
