"""Reads and writes the published format, `options.json` and `weights.hdf5`, as bilm-tf wrote it.

Shapes: `E` dimension of a character's embedding, `n` filters of one width, `F` filters in all, `P` projection, `C`
cells, `V` words.

Published arrays correspond one to one to the leaves of the parameter tree (`layout.py`); only the shape of the filters
differs. The order of the kernel's rows (`[input; h]`) and of the gates (`i, j, f, o`), and the forget bias (not stored)
are the same in both.

A file may come from anywhere and is not trusted (see `hdf5_files`).
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from elmo_jax.characters import MAX_CHARACTERS
from elmo_jax.checkpoints.hdf5_files import check_fits, check_stored, new_hdf5, node_of, opened, stored_bytes
from elmo_jax.checkpoints.layout import check_shapes, flatten, parameter_shapes, unflatten
from elmo_jax.checkpoints.options import read_options, write_options
from elmo_jax.config import DIRECTIONS, ModelConfig
from elmo_jax.errors import UserError
from elmo_jax.files import atomic_file, local, writing

_log = logging.getLogger(__name__)

# Pairs (published name, key path of the tree); `{}` is a number from 0.
_CELL = "RNN/MultiRNNCell/Cell{}/LSTMCell"
_NAMES = (
    ("char_embed", "token_encoder/char_embedding"),
    ("CNN/W_cnn_{}", "token_encoder/filter_{}/kernel"),
    ("CNN/b_cnn_{}", "token_encoder/filter_{}/bias"),
    ("CNN_high_{}/W_carry", "token_encoder/highway_{}/carry/kernel"),
    ("CNN_high_{}/b_carry", "token_encoder/highway_{}/carry/bias"),
    ("CNN_high_{}/W_transform", "token_encoder/highway_{}/transform/kernel"),
    ("CNN_high_{}/b_transform", "token_encoder/highway_{}/transform/bias"),
    ("CNN_proj/W_proj", "token_encoder/projection/kernel"),
    ("CNN_proj/b_proj", "token_encoder/projection/bias"),
    (f"RNN_0/{_CELL}/W_0", "forward/layer_{}/kernel"),
    (f"RNN_0/{_CELL}/B", "forward/layer_{}/bias"),
    (f"RNN_0/{_CELL}/W_P_0", "forward/layer_{}/projection"),
    (f"RNN_1/{_CELL}/W_0", "backward/layer_{}/kernel"),
    (f"RNN_1/{_CELL}/B", "backward/layer_{}/bias"),
    (f"RNN_1/{_CELL}/W_P_0", "backward/layer_{}/projection"),
    ("softmax/W", "softmax/kernel"),  # only in bilm-tf's own checkpoints, never in an HDF5 file
    ("softmax/b", "softmax/bias"),
)


def published_name(path: str) -> str:
    """Returns the published name of a key path of the tree; raises `KeyError` for another path."""
    return _renamed(path, 1, 0)


def _renamed(name: str, source: int, target: int) -> str:
    for pair in _NAMES:
        head, _, tail = pair[source].partition("{}")
        if name == pair[source]:
            return pair[target]
        number = name[len(head) : len(name) - len(tail)]
        if "{}" in pair[source] and name == f"{head}{number}{tail}" and number.isdecimal():
            return pair[target].replace("{}", number)
    raise KeyError(name)


def published_shape(path: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the published shape: filters `[width, E, n]` are `[1, width, E, n]`, 2D convolutions of height 1."""
    return (1, *shape) if len(shape) == 3 else shape


def tree_from_published(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Renames published arrays, which may include `softmax/W` [V, P] and `softmax/b` [V], to the parameter tree."""
    flat = {}
    for name, array in arrays.items():
        flat[_renamed(name, 0, 1)] = array.reshape(array.shape[1:]) if name.startswith("CNN/W_cnn_") else array
    return unflatten(flat)


def published_from_tree(params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns published arrays by name, the inverse of `tree_from_published`; the softmax is included if present."""
    flat = {path: np.asarray(leaf) for path, leaf in flatten(params).items()}
    return {published_name(path): leaf.reshape(published_shape(path, leaf.shape)) for path, leaf in flat.items()}


def read_hdf5(options: str | os.PathLike[str], weights: str | os.PathLike[str]) -> tuple[ModelConfig, dict[str, Any]]:
    """Reads the architecture of a published biLM, and its parameter tree without softmax, as NumPy float32 arrays."""
    model, weights = read_options(options), local(weights)
    if model.directions != DIRECTIONS:
        raise UserError(f"{options}: 'bidirectional': expected true, got False; HDF5 weights have two directions")
    shapes = {published_name(path): published_shape(path, shape) for path, shape in parameter_shapes(model).items()}
    with opened(weights, "the weights of a biLM") as file:
        datasets = {name: _dataset(file, name, shape, weights) for name, shape in shapes.items()}
        _check_nothing_more(file, model, weights)
        check_fits(sum(map(stored_bytes, datasets.values())), weights)
        if others := {dataset.dtype.name for dataset in datasets.values()} - {"float32"}:
            _log.warning("%s: holds %s numbers, which are converted to float32", weights, " and ".join(sorted(others)))
        with np.errstate(over="ignore"):  # an overflow is infinite, and refused below
            arrays = {name: np.asarray(dataset[()], dtype=np.float32) for name, dataset in datasets.items()}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise UserError(f"{weights}: dataset '{name}' has numbers that are infinite or NaN; get the file again")
    return model, tree_from_published(arrays)


def _dataset(file: h5py.File, name: str, shape: tuple[int, ...], weights: Path) -> h5py.Dataset:
    where = f"{weights}: dataset '{name}'"
    node = node_of(file, name, where)
    if node is None:
        raise UserError(f"{where} is missing; expected shape {shape}, as options.json says")
    if not isinstance(node, h5py.Dataset):
        raise UserError(f"{where} is a group; expected a dataset of shape {shape}")
    if node.shape != shape:
        raise UserError(f"{where} has shape {node.shape}, expected {shape}, as options.json says")
    if node.dtype.newbyteorder("=") not in (np.float32, np.float64, np.float16):
        raise UserError(f"{where} holds {node.dtype}, expected float32")
    check_stored(node, where)
    return node


def _check_nothing_more(file: h5py.File, model: ModelConfig, weights: Path) -> None:
    cnn, lstm = model.char_cnn, model.lstm
    absent = [(f"CNN/W_cnn_{len(cnn.filters)}", "char_cnn.filters"), (f"CNN_high_{cnn.highways}", "char_cnn.n_highway")]
    if cnn.features == lstm.projection:
        absent.append(("CNN_proj", "char_cnn.filters, lstm.projection_dim"))
    for direction in ("RNN_0", "RNN_1"):
        absent.append((f"{direction}/RNN/MultiRNNCell/Cell{lstm.layers}", "lstm.n_layers"))
        if lstm.cells == lstm.projection:
            absent.append((f"{direction}/{_CELL.format(0)}/W_P_0", "lstm.dim, lstm.projection_dim"))
    for name, keys in absent:
        if node_of(file, name, f"{weights}: '{name}'") is not None:
            raise UserError(f"{weights}: '{name}' is there, but options.json ({keys}) has no place for it")


def unreadable_by_allennlp(model: ModelConfig) -> list[str]:
    """Returns what a biLM has that AllenNLP's ELMo cannot read; bilm-tf reads it."""
    cnn, lstm = model.char_cnn, model.lstm
    problems = {
        f"{cnn.max_characters} characters per word, where it has 50": cnn.max_characters != MAX_CHARACTERS,
        "no projection in the LSTMs (model.lstm.cells equals projection)": lstm.cells == lstm.projection,
        "no projection after the filters (their number equals model.lstm.projection)": cnn.features == lstm.projection,
    }
    return [problem for problem, is_met in problems.items() if is_met]


def write_hdf5(
    options: str | os.PathLike[str], weights: str | os.PathLike[str], model: ModelConfig, params: Mapping[str, Any]
) -> None:
    """Writes a biLM in the published format, which has no softmax: that of `params`, if any, is left out."""
    if model.directions != DIRECTIONS:
        raise UserError("export to HDF5: the published format has two directions, and this biLM has only forward")
    flat = {path: np.asarray(leaf) for path, leaf in flatten(params).items() if not path.startswith("softmax/")}
    check_shapes({path: leaf.shape for path, leaf in flat.items()}, model, "export to HDF5")
    with writing(Path(weights)), atomic_file(Path(weights)) as temporary:
        with new_hdf5(temporary) as writer:
            for name, array in published_from_tree(unflatten(flat)).items():
                writer.add(name, array.astype(np.float32, copy=False))
        write_options(options, model)  # before the weights get their name, so that these are never without options
