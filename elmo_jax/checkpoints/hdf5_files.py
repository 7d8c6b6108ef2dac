"""Reads datasets of HDF5 files that are not trusted, and writes such files so that a full disk is an `OSError`.

The size of a dataset is compared with the size of the file before any of its data are read, and anything that makes
HDF5 read elsewhere or unpack data (links, external or virtual storage, filters) is refused. Memory is therefore bounded
by the size of the file.

The HDF5 library crashes the process (a segmentation fault) if it cannot write its own caches while it closes a file.
So it never meets a failed write: it writes through `_Spill`, which keeps in memory what the disk does not take, and
remembers the error. The error is raised after the dataset in which it occurred, and the file is closed before that, so
what is kept in memory is one dataset and the library's caches.
"""

import contextlib
import io
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from elmo_jax.errors import UserError


@contextlib.contextmanager
def opened(path: Path, expected: str) -> Iterator[h5py.File]:
    """Opens an HDF5 file of what is `expected`, and turns what h5py raises on a broken file into a `UserError`."""
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


class Hdf5Writer:
    """An HDF5 file that is being written, as `new_hdf5` has opened it; `file` may be read and have attributes."""

    def __init__(self, file: h5py.File, stream: "_Spill") -> None:
        self.file, self._stream = file, stream

    def add(self, name: str, array: np.ndarray) -> None:
        self.file.create_dataset(name, data=array)
        self.check()

    def check(self) -> None:
        """Raises the `OSError` of a write that the disk did not take."""
        if self._stream.error is not None:
            raise self._stream.error


@contextlib.contextmanager
def new_hdf5(path: Path, **options: Any) -> Iterator[Hdf5Writer]:
    """Yields a new HDF5 file, which is on the disk at the end; raises `OSError` if the disk is full."""
    with _Spill(path) as stream:
        with h5py.File(stream, "w", **options) as file:
            yield Hdf5Writer(file, stream)
        if stream.error is not None:
            raise stream.error


class _Spill(io.FileIO):
    """A file that takes every write; those that the disk does not take are kept in memory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._size = 0
        self._kept: list[tuple[int, bytes]] = []  # place and content, later ones lie above earlier ones
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return super().seek(self._size + offset) if whence == os.SEEK_END else super().seek(offset, whence)

    def truncate(self, size: int | None = None) -> int:
        """Sets the size; HDF5 does this last, and the disk may not take that either."""
        self._size = self.tell() if size is None else size
        try:
            super().truncate(self._size)
        except OSError as error:
            self.error = self.error or error
        return self._size

    def write(self, content: Any) -> int:
        data, offset = memoryview(content).cast("B"), self.tell()
        written = 0
        if self.error is None:
            try:
                while written < len(data):
                    written += super().write(data[written:])
            except OSError as error:
                self.error = error
        if written < len(data):
            self._kept.append((offset + written, bytes(data[written:])))
        self._size = max(self._size, self.seek(offset + len(data)))
        return len(data)

    def readinto(self, buffer: Any) -> int:
        view, start = memoryview(buffer).cast("B"), self.tell()
        length = max(0, min(len(view), self._size - start))
        count = super().readinto(view[:length])
        view[count:length] = bytes(length - count)  # a hole
        for offset, content in self._kept:
            first, last = max(offset, start), min(offset + len(content), start + length)
            if first < last:
                view[first - start : last - start] = content[first - offset : last - offset]
        return self.seek(start + length) - start
