"""Vectors of sentences as a folder of NumPy files, for texts whose vectors are too many for one HDF5 file.

Shapes: N words of a file, T words per line, L LSTM layers, P projection.

The folder has

- `000000000000.npy`, `000000001024.npy`, …: the vectors of the lines from that line on, those of all words one after
  another, [N, L+1, 2P], or [N, 2P] where one vector per word is written;
- `lengths.npy`: the number of words of each line, int32; with `--mean-of-words`, 1, or 0 for a line without words;
- `job.json`: what the vectors were made from.

Each NumPy file ends with a checksum after its array, the CRC-32 of all bytes before it, which NumPy does not read.

While `embed --state carry` runs, the folder also has `000000001024.carry`, …, NumPy files with the LSTM state before
that line.
"""

import functools
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from elmo_jax.errors import UserError
from elmo_jax.files import local, write_bytes

_LENGTHS = "lengths.npy"
CARRY = ".carry"
_OPEN_FILES = 64  # memory maps that are kept


def write_shard(path: Path, vectors: Sequence[np.ndarray]) -> None:
    """Writes the vectors of some lines, each [L+1, T, 2P] or [T, 2P], as a file that is complete whenever it exists."""
    by_word = [np.moveaxis(found, 0, 1) if found.ndim == 3 else found for found in vectors]
    save(path, np.concatenate(by_word))


def write_lengths(folder: Path, lengths: Iterable[int]) -> None:
    """Adds the numbers of words of all lines to a folder with all files of vectors."""
    save(folder / _LENGTHS, np.fromiter(lengths, np.int32))


def save(path: Path, array: np.ndarray) -> None:
    """Writes an array as a NumPy file that is complete whenever it exists."""
    content = io.BytesIO()  # `np.save` into a real file does not report that the disk was full at the end
    np.save(content, array)
    content.write(zlib.crc32(content.getbuffer()).to_bytes(4, "little"))
    write_bytes(path, content.getvalue())  # Python 3.12.1 may crash after an error while a view of it is written


def check_file(path: Path) -> None:
    """Raises `UserError` if a file of `save` is missing, or is not what was written."""
    try:
        content = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: missing or damaged ({error})") from None
    if zlib.crc32(content[:-4].data) != int.from_bytes(content[-4:].tobytes(), "little"):
        raise UserError(f"{path}: missing or damaged (its checksum is another one)")


class VectorShards(Sequence[np.ndarray]):
    """Reads the folder that `elmo-jax embed --format npy` writes, by line; the files are mapped, not read into memory.

    Attributes:
      path: the folder.
      lengths: the number of words of each line, int32 [lines].
      made_from: the fingerprints and settings that the vectors were made with.
    """

    def __init__(self, path: str | Path) -> None:
        """Opens a folder. Raises `UserError` if it is none, or if a file is missing."""
        self.path = local(path)
        try:
            self.lengths: np.ndarray = np.load(self.path / _LENGTHS, allow_pickle=False)
            self.made_from = json.loads((self.path / "job.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path}: not a whole folder of `elmo-jax embed --format npy` ({error})") from error
        self._firsts = np.array(sorted(int(file.stem) for file in self.path.glob("0*.npy")), np.int64)
        self._ends = np.append(self._firsts[1:], len(self.lengths))  # the line after the last one of each file
        self._rows = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])  # the first word of each line
        if not isinstance(self.made_from, dict) or self.made_from.get("lines") != len(self.lengths):
            raise UserError(f"{self.path / _LENGTHS}: has another number of lines than job.json says")
        self._open = functools.lru_cache(_OPEN_FILES)(self._opened)

    def __len__(self) -> int:
        """Returns the number of lines."""
        return len(self.lengths)

    @overload
    def __getitem__(self, line: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, line: slice) -> list[np.ndarray]: ...

    def __getitem__(self, line: int | slice) -> np.ndarray | list[np.ndarray]:
        """Returns the vectors of a line, [L+1, T, 2P] or [T, 2P], as the dataset of that line in HDF5; or of several.

        Raises:
          IndexError: there is no such line.
          UserError: the file of the line is missing or damaged.
        """
        if isinstance(line, slice):
            return [self[one] for one in range(*line.indices(len(self)))]
        if not -len(self) <= line < len(self):
            raise IndexError(f"line {line} of {len(self)} lines")
        line %= len(self)
        number = int(np.searchsorted(self._firsts, line, "right")) - 1
        words = self._open(number)
        start = self._rows[line] - self._rows[self._firsts[number]]
        found = words[start : start + self.lengths[line]]
        return np.moveaxis(found, 1, 0) if found.ndim == 3 else found

    def check(self) -> None:
        """Raises `UserError` if a file is missing or damaged; reads all of them."""
        if len(self) and (not len(self._firsts) or self._firsts[0]):
            self._open(-1)  # raises, since there is no first file
        for number in range(len(self._firsts)):
            self._open(number)
            check_file(self.path / f"{self._firsts[number]:012}.npy")
        check_file(self.path / _LENGTHS)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yields the vectors of each line."""
        return (self[line] for line in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns how to open the folder again, in another process."""
        return VectorShards, (self.path,)

    def __repr__(self) -> str:
        """Returns the size in one line."""
        return f"VectorShards({str(self.path)!r}, {len(self):,} lines, {self._rows[-1]:,} words)"

    def _opened(self, number: int) -> np.ndarray:
        file = self.path / f"{self._firsts[number] if number >= 0 else 0:012}.npy"
        try:
            words: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UserError(f"{file}: not a whole NumPy file ({error})") from error
        expected = self._rows[self._ends[number]] - self._rows[self._firsts[number]]
        if len(words) != expected:
            raise UserError(
                f"{file}: {len(words):,} words, expected {expected:,}; it is damaged, or the file after it is missing"
            )
        return words
