"""Reads the variables of a TensorFlow checkpoint (format TensorBundle, "V2") without TensorFlow.

`NAME.index` is a table of LevelDB: blocks of sorted keys, each key without what it shares with the one before, and a
footer that names the block with the places of the others. A value is a protocol buffer: under the empty key the number
of shards, and under a variable's name its type, its shape, and where its bytes are in `NAME.data-XXXXX-of-YYYYY`. Each
block and each variable has a masked CRC-32C, and all of them are verified. See `tensorflow/core/util/tensor_bundle` and
`tensorflow/core/protobuf/tensor_bundle.proto`.

A file may come from anywhere and is not trusted.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from elmo_jax.errors import UserError
from elmo_jax.text_files import reading

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER, _TRAILER = 48, 5  # bytes; a block's trailer is its compression and its CRC
_INDEX_BYTES = 1 << 24  # the largest index that is read; that of the published biLM has 4 kB
_CHUNK = 1 << 24  # the bytes read at a time, for which memory is needed besides the array
_DTYPES = {1: "<f4", 3: "<i4", 9: "<i8"}  # by TensorFlow's numbers of data types


class Variable(NamedTuple):
    """A variable, as the index describes it."""

    dtype: int  # TensorFlow's number of the data type
    shape: tuple[int, ...]
    shard: int  # the number of the file of data
    offset: int  # where its bytes begin there
    size: int  # in bytes
    crc: int  # the masked CRC-32C of its bytes
    slices: int  # the number of its parts, if it is partitioned, which have keys that are not text


class TensorBundle:
    """A checkpoint that is open for reading.

    Attributes:
      variables: all variables by name.
    """

    def __init__(self, name: str | os.PathLike[str]) -> None:
        """Reads the index of the checkpoint whose files begin with `name`.

        Raises:
          UserError: the index cannot be read, is damaged or is not an index of TensorFlow.
        """
        self._name = os.fspath(name)
        path = Path(f"{self._name}.index")
        with reading(path), path.open("rb") as file:
            table = file.read(_INDEX_BYTES + 1)
        try:
            entries = dict(_entries(table))
            header = dict(_fields(entries.pop(b"")))
            self.variables = {key.decode(): _variable(value) for key, value in entries.items() if b"\0" not in key}
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"{path}: damaged, or not the index of a TensorFlow checkpoint ({error}); get the file again"
            ) from None
        if header.get(2):
            raise UserError(f"{path}: written by a big-endian machine; expected a little-endian checkpoint")
        self._shards = header.get(1, 1)

    def read(self, name: str) -> np.ndarray:
        """Returns the value of a variable; the CRC is verified while the bytes are copied into the array.

        Raises:
          UserError: the file of data cannot be read, is damaged or cut short, or the variable is partitioned or has
            another type than float32, int32 or int64.
        """
        known = self.variables[name]
        path = Path(f"{self._name}.data-{known.shard:05d}-of-{self._shards:05d}")
        where = f"{path}: variable '{name}'"
        if known.slices or known.dtype not in _DTYPES:
            what = "is partitioned" if known.slices else f"has TensorFlow's data type {known.dtype}"
            raise UserError(f"{where} {what}, which cannot be read; expected a whole array of float32")
        dtype = np.dtype(_DTYPES[known.dtype])
        crc = 0
        with reading(path), path.open("rb") as file:
            is_whole = known.offset + known.size <= os.fstat(file.fileno()).st_size
            if not is_whole or known.size != math.prod(known.shape) * dtype.itemsize:
                raise UserError(f"{where} is cut short, or the .index is of another checkpoint; get both files again")
            array = np.empty(known.shape, dtype)
            content = array.reshape(-1).view(np.uint8)
            file.seek(known.offset)
            for start in range(0, known.size, _CHUNK):
                part = file.read(min(_CHUNK, known.size - start))
                crc = google_crc32c.extend(crc, part)
                content[start : start + len(part)] = np.frombuffer(part, np.uint8)
        if _masked(crc) != known.crc:
            raise UserError(f"{where} is damaged (its CRC differs); get the file again")
        return array


def _masked(crc: int) -> int:
    """Returns a CRC as LevelDB stores it, which is not itself the CRC of data that hold CRCs."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a table, which raises `ValueError` or `LookupError` for one that is damaged."""
    if len(table) > _INDEX_BYTES or len(table) < _FOOTER or table[-8:] != _MAGIC:
        raise ValueError("it does not end as one" if len(table) <= _INDEX_BYTES else "it is larger than 16 MB")
    footer = table[-_FOOTER:]
    list(_block(table, footer))  # the block of metadata, which is empty
    at = 0
    for _ in range(2):
        _, at = _varint(footer, at)
    for _, handle in _block(table, footer[at:]):
        yield from _block(table, handle)


def _block(table: bytes, handle: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of the block at the place that `handle` names."""
    start, at = _varint(handle, 0)
    size, _ = _varint(handle, at)
    block, trailer = table[start : start + size], table[start + size : start + size + _TRAILER]
    if _masked(google_crc32c.value(block + trailer[:1])) != int.from_bytes(trailer[1:], "little"):
        raise ValueError("the CRC of a block differs")
    if trailer[0]:
        raise ValueError("a block is compressed, which TensorFlow's are not")
    restarts = int.from_bytes(block[-4:], "little")  # the number of places where a key is stored whole
    end, at, key = size - 4 * (restarts + 1), 0, b""
    while at < end:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        length, at = _varint(block, at)
        key = key[:shared] + block[at : at + own]
        at += own + length
        yield key, block[at - length : at]


def _variable(entry: bytes) -> Variable:
    """Parses a `BundleEntryProto`."""
    fields, slices = dict(_fields(entry)), sum(number == 7 for number, _ in _fields(entry))
    shape = tuple(dict(_fields(part)).get(1, 0) for number, part in _fields(fields.get(2, b"")) if number == 2)
    dtype, shard, offset, size, crc = (int(fields.get(number, 0)) for number in (1, 3, 4, 5, 6))
    return Variable(dtype, shape, shard, offset, size, crc, slices)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields the numbers and values of the fields of a protocol buffer."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size, at = ({1: 8, 5: 4}[kind], at) if kind != 2 else _varint(message, at)
        part, at = message[at : at + size], at + size
        yield key >> 3, part if kind == 2 else int.from_bytes(part, "little")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the integer that is stored at a place in groups of 7 bits, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise ValueError("an integer is too long")
