"""Reads datasets of HDF5 files that are not trusted.

The size of a dataset is compared with the size of the file before any of its data are read, and anything that makes
HDF5 read elsewhere or unpack data (links, external or virtual storage, filters) is refused. Memory is therefore bounded
by the size of the file.
"""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

from elmo_jax.errors import UserError


@contextlib.contextmanager
def opened(path: Path, expected: str) -> Iterator[h5py.File]:
    """Opens an HDF5 file for reading, and turns what h5py raises on a broken file into a `UserError`.

    Messages name what is `expected`, such as "the weights of a biLM".
    """
    try:
        with open(path, "rb"):  # HDF5's own message for a file that cannot be opened has several lines
            pass
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); expected {expected}, HDF5") from None
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{path}: not a whole HDF5 file ({reason}); expected {expected}") from None


def node_of(file: h5py.File, name: str, where: str) -> Any:
    """Returns the node of that name, or None; links are refused, since they may point to any file."""
    node: Any = file
    for part in name.split("/"):
        link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise UserError(f"{where} is a link to somewhere else; expected the data in this file")
        node = node[part]
    return node


def check_stored(dataset: h5py.Dataset, where: str) -> None:
    """Raises `UserError` unless all data of a dataset are stored in its file, and uncompressed."""
    if dataset.is_virtual or dataset.external or dataset.id.get_create_plist().get_nfilters():
        raise UserError(f"{where} is compressed or stored elsewhere; expected plain data (try: h5repack -f NONE)")
    if dataset.id.get_storage_size() < stored_bytes(dataset):
        raise UserError(f"{where} has no data behind part of its shape {dataset.shape}; the file is not complete")


def check_fits(declared_bytes: int, path: Path) -> None:
    """Raises `UserError` if the datasets of a file say they hold more bytes than the file has."""
    size = os.stat(path).st_size
    if declared_bytes > size:  # the datasets share bytes, or the file is truncated
        raise UserError(f"{path}: {size} bytes, too few for the {declared_bytes} its datasets say they hold")


def stored_bytes(dataset: h5py.Dataset) -> int:
    """Returns the number of bytes of a dataset's data, as its shape and type say."""
    return dataset.dtype.itemsize * math.prod(dataset.shape)
