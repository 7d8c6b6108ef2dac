"""Vectors of sentences as NumPy files that are verified, and a folder of them for a text.

Shapes: N words of a file, T words per line, L LSTM layers, P projection.

The folder of a text has

- `000000000000.npy`, `000000001024.npy`, …: the vectors of the lines from that line on, those of all words one after
  another, [N, L+1, 2P], or [N, 2P] where one vector per word is written;
- `lengths.npy`: the number of words of each line, int32; with `--mean-of-words`, 1, or 0 for a line without words;
- `job.json`: what the vectors were made from.

Each file ends with an index after its array, which NumPy does not read: for each sentence a key, by which a cache finds
it, its number of words, and the CRC-32 of its vectors; then the CRC-32 of NumPy's header and these entries, and their
number.

While `embed --state carry` runs, the folder also has `000000001024.carry`, …, such files with the LSTM state before
that line.
"""

import contextlib
import functools
import io
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from elmo_jax.errors import UserError
from elmo_jax.files import atomic_file, local

LENGTHS, JOB = "lengths.npy", "job.json"
VERSION = 3  # of the folder, in `JOB`
_OPEN_FILES = 256  # memory maps that are kept
_ENTRY = np.dtype([("key", "V16"), ("words", "<i8"), ("crc", "<u4")])
_FOOTER = struct.Struct("<Iq")


def write_shard(path: Path, vectors: np.ndarray, lengths: Sequence[int], keys: Sequence[bytes] | None = None) -> None:
    """Writes the vectors [N, …] of sentences of `lengths` words as a file that is complete whenever it exists."""
    index = np.zeros(len(lengths), _ENTRY)
    index["words"] = lengths
    if keys:
        index["key"] = np.frombuffer(b"".join(keys), "V16")
    vectors = np.ascontiguousarray(vectors)
    index["crc"] = [zlib.crc32(part.data) for part in np.split(vectors, np.cumsum(lengths))[:-1]]
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(vectors))
    crc = zlib.crc32(index.tobytes(), zlib.crc32(header.getvalue()))
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        file.write(header.getvalue())
        for part in vectors, index:  # not by `np.save`, which does not report that the disk was full at the end
            file.write(part.data if part.size else b"")
        file.write(_FOOTER.pack(crc, len(index)))


class DamagedFile(UserError):
    """A file of vectors is not there, or is not what was written; it can be deleted and made again."""


@contextlib.contextmanager
def advised(remedy: str) -> Iterator[None]:
    """Adds to the message of a `DamagedFile` what to do about it."""
    try:
        yield
    except DamagedFile as error:
        raise UserError(f"{error}; {remedy}") from None


class Shard(Sequence[np.ndarray]):
    """The vectors of the sentences of a file, which is mapped, not read into memory.

    The `vectors` [N, …] are those of all words; `keys` and `lengths`, the number of words, are those of each sentence.

    Raises:
      DamagedFile: the file, or the index that is read at first, is missing or damaged.
      UserError: it cannot be read, for example since this process has too many open files.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                file.seek(max(size - _FOOTER.size, 0))
                crc, number = _FOOTER.unpack(file.read())
                rest = number * _ENTRY.itemsize + _FOOTER.size
                if not _FOOTER.size <= rest <= size:
                    raise ValueError("its end is not that of such a file")
                file.seek(-rest, 2)
                entries = file.read(number * _ENTRY.itemsize)
                mapped: Any = np.load(path, mmap_mode="r", allow_pickle=False)
                file.seek(0)
                header = file.read(mapped.offset)
            if zlib.crc32(entries, zlib.crc32(header)) != crc:
                raise ValueError("the checksum of its header or its index is another one")
            index = np.frombuffer(entries, _ENTRY)
            if len(mapped) != index["words"].sum() or mapped.offset + mapped.nbytes + rest != size:
                raise ValueError("its size is not that of its index")
        except Exception as error:  # of many kinds, from NumPy's parser of the header
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise UserError(f"{path}: cannot be read ({error.strerror})") from None
            raise DamagedFile(f"{path}: missing or damaged ({error})") from None
        self.vectors = mapped.view(np.ndarray)
        self.keys: list[bytes] = index["key"].tolist()
        self.lengths, self._crcs = index["words"], index["crc"]
        self._ends = np.cumsum(self.lengths)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, number: int) -> np.ndarray:  # type: ignore[override]
        """Returns the vectors of a sentence, [T, …]. Raises `UserError` if they are not those that were written."""
        vectors = self.vectors[self._ends[number] - self.lengths[number] : self._ends[number]]
        if zlib.crc32(vectors) != self._crcs[number]:
            raise DamagedFile(f"{self.path}: damaged (the checksum of its sentence {number + 1} is another one)")
        return vectors


class VectorShards(Sequence[np.ndarray]):
    """Reads the folder that `elmo-jax embed --format npy` writes, by line; the files are mapped, not read into memory.

    Attributes:
      path: the folder.
      lengths: the number of words of each line, int32 [lines].
      made_from: the fingerprints and settings that the vectors were made with.

    Raises:
      UserError: the path is not such a folder, was written by another version, or its index is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = local(path)
        try:
            self.lengths: np.ndarray = np.load(self.path / LENGTHS, allow_pickle=False)
            self.made_from = json.loads((self.path / JOB).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DamagedFile(f"{self.path}: not a whole folder of `elmo-jax embed --format npy` ({error})") from error
        if not isinstance(self.made_from, dict) or self.made_from.get("version") != VERSION:
            raise DamagedFile(f"{self.path}: written by another version of elmo_jax; run `elmo-jax embed` again")
        if self.made_from.get("lines") != len(self.lengths):
            raise DamagedFile(f"{self.path / LENGTHS}: has another number of lines than job.json says")
        self._firsts = np.array(sorted({0} | {int(file.stem) for file in self.path.glob("0*.npy")}))
        self._ends = np.append(self._firsts[1:], len(self.lengths))  # the line after the last one of each file
        self._open = functools.lru_cache(_OPEN_FILES)(self._opened)

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, line: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, line: slice) -> list[np.ndarray]: ...

    def __getitem__(self, line: int | slice) -> np.ndarray | list[np.ndarray]:
        """Returns the vectors of a line, [L+1, T, 2P] or [T, 2P], as the dataset of that line in HDF5; or of several.

        Raises:
          IndexError: there is no such line.
          UserError: the file of the line is missing, or the line's vectors are damaged.
        """
        if isinstance(line, slice):
            return [self[one] for one in range(*line.indices(len(self)))]
        if not -len(self) <= line < len(self):
            raise IndexError(f"line {line} of {len(self)} lines")
        line %= len(self)
        number = int(np.searchsorted(self._firsts, line, "right")) - 1
        vectors = self._open(number)[line - int(self._firsts[number])]
        return np.moveaxis(vectors, 1, 0) if vectors.ndim == 3 else vectors

    def check(self, vectors: bool = True) -> None:
        """Raises `UserError` if a file is missing, or its index or, with `vectors`, one of its vectors damaged."""
        for line in range(len(self)) if vectors or not len(self) else self._firsts.tolist():
            self[line]

    def __reduce__(self) -> tuple[Any, ...]:
        return VectorShards, (self.path,)

    def __repr__(self) -> str:
        return f"VectorShards({str(self.path)!r}, {len(self):,} lines, {self.lengths.sum():,} words)"

    def _opened(self, number: int) -> Shard:
        shard = Shard(self.path / f"{self._firsts[number]:012}.npy")
        expected = self.lengths[self._firsts[number] : self._ends[number]]
        if not np.array_equal(shard.lengths, expected):
            problem = f"has {len(shard):,} lines, expected {len(expected):,}; or the file after it is missing"
            raise DamagedFile(f"{shard.path}: {problem}")
        return shard
