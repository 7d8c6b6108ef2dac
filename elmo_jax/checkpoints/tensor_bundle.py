"""Reads a checkpoint of TensorFlow (TensorBundle, "V2") without TensorFlow, and verifies all of its CRCs.

`NAME.index` is a table as in LevelDB: blocks of sorted keys, each without what it shares with the key before, and a
footer with the place of the block that names the others. The values are protocol buffers (tensor_bundle.proto): under
the empty key the number of shards, and under the name of a variable its type, its shape, and where its bytes are in
`NAME.data-XXXXX-of-YYYYY`. A file may come from anywhere and is not trusted.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from elmo_jax.errors import UserError
from elmo_jax.text_files import reading

_MAGIC = bytes.fromhex("57fb808b247547db")
_FOOTER = 48  # bytes
_DTYPES = {1: "<f4", 3: "<i4", 9: "<i8"}  # by TensorFlow's numbers of types


class TensorBundle:
    """A checkpoint whose files begin with `name`; `shapes` are those of its variables, by name."""

    def __init__(self, name: str | os.PathLike[str]) -> None:
        self._name, path = os.fspath(name), Path(f"{os.fspath(name)}.index")
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._entries: dict[str, dict[int, Any]] = {}
        try:
            with reading(path):
                entries = dict(_entries(path.read_bytes()))
            header = dict(_fields(entries.pop(b"")))
            if header.get(2):
                raise ValueError("big-endian")
            for key, value in entries.items():
                if b"\0" not in key:  # as in those of the parts of partitioned variables
                    name, fields = key.decode(), dict.fromkeys(range(1, 7), 0) | {2: b""} | dict(_fields(value))
                    sizes = (dict(_fields(part)).get(1, 0) for number, part in _fields(fields[2]) if number == 2)
                    self._entries[name], self.shapes[name] = fields, tuple(sizes)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise UserError(f"{path}: damaged, or no index of TensorFlow ({error}); get the file again") from None
        self._shards = header.get(1, 1)

    def read(self, name: str) -> np.ndarray:
        fields, shape = self._entries[name], self.shapes[name]
        kind, shard, offset, size, expected = (fields[number] for number in (1, 3, 4, 5, 6))
        path = Path(f"{self._name}.data-{shard:05d}-of-{self._shards:05d}")
        where = f"{path}: variable '{name}'"
        if kind not in _DTYPES or 7 in fields:
            what = "is partitioned" if 7 in fields else f"has TensorFlow's type {kind}"
            raise UserError(f"{where} {what}, which cannot be read; expected a whole array of float32")
        with reading(path), path.open("rb") as file:
            is_there = offset + size <= os.fstat(file.fileno()).st_size
            if not is_there or size != math.prod(shape) * np.dtype(_DTYPES[kind]).itemsize:
                raise UserError(f"{where} is cut short, or the .index is of another checkpoint; get both files again")
            file.seek(offset)
            content = file.read(size)
        if _masked(google_crc32c.value(content)) != expected:
            raise UserError(f"{where} is damaged (its CRC differs); get the file again")
        return np.frombuffer(content, _DTYPES[kind]).reshape(shape)


def _masked(crc: int) -> int:  # as LevelDB stores a CRC-32C
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a table; for one that is damaged, raises `ValueError` or `LookupError`."""
    if table[-8:] != _MAGIC:
        raise ValueError("it does not end as one")
    footer, at = table[-_FOOTER:], 0
    list(_block(table, footer))  # a block of metadata, which is empty
    for _ in range(2):
        at = _varint(footer, at)[1]
    for _, handle in _block(table, footer[at:]):
        yield from _block(table, handle)


def _block(table: bytes, handle: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a block, whose place is its offset and its size."""
    start, at = _varint(handle, 0)
    end = start + _varint(handle, at)[0]
    if _masked(google_crc32c.value(table[start : end + 1])) != int.from_bytes(table[end + 1 : end + 5], "little"):
        raise ValueError("the CRC of a block differs")
    if table[end]:
        raise ValueError("compressed")
    block, at, key = table[start:end], 0, b""
    entries = len(block) - 4 * (int.from_bytes(block[-4:], "little") + 1)  # before the places of the whole keys
    while at < entries:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        size, at = _varint(block, at)
        key, at = key[:shared] + block[at : at + own], at + own + size
        yield key, block[at - size : at]


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    value: Any
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == 5:  # fixed32
            value, at = int.from_bytes(message[at : at + 4], "little"), at + 4
        else:
            value, at = _varint(message, at)
        if kind == 2:
            value, at = message[at : at + value], at + value
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the integer at a place, 7 bits per byte, and the place after it."""
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    rest, at = _varint(data, at + 1)
    return byte & 127 | rest << 7, at
