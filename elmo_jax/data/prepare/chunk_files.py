"""The file of a chunk that was tokenized, and the summary of it from which the text is divided.

A file appears completely or not at all, and begins with a checksum and the summary, so that a command that was stopped
continues with the files that it has finished, and a worker that repeats another's work does no harm.
"""

import io
import json
import zlib
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from elmo_jax.data.lexicon import LONG_WORD
from elmo_jax.data.prepare.text import LONG_SENTENCE, Chunk, Key, tokenize, unspaced_error
from elmo_jax.data.prepare.units import Boundaries, Planned
from elmo_jax.errors import UserError
from elmo_jax.files import write_bytes

Sizes = list[list[int]]  # of a chunk, documents, sentences and words per split
PIECE, IDS = ".piece", ".ids"  # the suffixes of the files of a chunk


class Summary(NamedTuple):
    """The counts of a chunk."""

    key: Key
    text_bytes: int
    words: int
    boundaries: Boundaries
    counts: dict[str, int]  # those of the report
    longest_sentence: int  # in words
    unspaced_bytes: int  # of the pieces that were left out, since their words are not separated by spaces
    unspaced: str  # the message about the first of them; empty if there are none

    @classmethod
    def of_json(cls, value: Any) -> "Summary":
        """Returns the summary that was written as JSON."""
        key, text_bytes, words, bounds, *others = value
        return cls(tuple(key), text_bytes, words, Boundaries(*bounds), *others)


class ChunkText(NamedTuple):
    """The words of a chunk."""

    types: list[str]  # the distinct words, in the order of their first use
    ids: np.ndarray  # int32 `[words]`, for each word its index into `types`
    lengths: np.ndarray  # int32 `[sentences]`, the number of words of each sentence
    starts: np.ndarray  # int32 `[documents]`, the sentences that begin documents, each once


def write_chunk(chunk: Chunk, folder: epath.Path) -> tuple[Summary, bool]:
    """Tokenizes a chunk into its file, unless that is there and whole; returns its summary, and whether it was.

    Raises:
      UserError: as `tokenize`.
    """
    try:
        return Summary.of_json(json.loads(_read(folder, chunk.key, PIECE)[0].tobytes())), True
    except (FileNotFoundError, UserError):
        pass
    tokenized = tokenize(chunk)
    before = np.concatenate([[0], np.cumsum(tokenized.pieces)])  # the sentences before each piece
    starts = np.unique(before[np.flatnonzero([piece.starts_document for piece in chunk.pieces])]).astype(np.int32)
    long = tokenized.lengths[tokenized.lengths > LONG_SENTENCE]
    is_long_word = np.fromiter((len(word.encode()) > LONG_WORD for word in tokenized.types), bool, len(tokenized.types))
    unspaced = [chunk.pieces[index] for index in tokenized.unspaced]
    counts = {
        "empty_lines": tokenized.empty_lines,
        "special_words_dropped": tokenized.special_words_dropped,
        "replaced_lines": tokenized.replaced_lines,
        "unspaced_documents": sum(piece.starts_document for piece in unspaced),
        "long_sentences": len(long),
        "long_sentence_words": int(long.sum()),
        "long_word_uses": int(np.count_nonzero(is_long_word[tokenized.ids])),
    }
    summary = Summary(
        chunk.key,
        sum(len(piece.data) for piece in chunk.pieces),
        len(tokenized.ids),
        Boundaries.of(starts, len(tokenized.lengths)),
        counts,
        int(tokenized.lengths.max(initial=0)),
        sum(len(piece.data) for piece in unspaced),
        str(unspaced_error(unspaced[0])) if unspaced else "",
    )
    described, text = (
        np.frombuffer(part.encode(), np.uint8) for part in (json.dumps(summary), "\n".join(tokenized.types))
    )
    _write(folder, chunk.key, PIECE, described, text, tokenized.ids, tokenized.lengths, starts)
    return summary, False


def read_chunk(folder: epath.Path, key: Key) -> ChunkText:
    """Returns the words of a chunk. Raises `UserError` if its file is damaged."""
    _, types, ids, lengths, starts = _read(folder, key, PIECE)
    return ChunkText(types.tobytes().decode().split("\n") if len(ids) else [], ids, lengths, starts)


def count_words(folder: epath.Path, chunk: Planned) -> tuple[list[str], np.ndarray, Sizes]:
    """Returns the distinct words of a chunk, their counts in the training text, int64 `[types]`, and its sizes."""
    text = read_chunk(folder, chunk.key)
    is_held, begin = chunk.divide(text.starts, len(text.lengths))
    counts = np.bincount(text.ids[np.repeat(~is_held, text.lengths)], minlength=len(text.types))
    of_split = (
        [np.count_nonzero(begin & split), np.count_nonzero(split), text.lengths[split].sum()]
        for split in (~is_held, is_held)
    )
    return text.types, counts, [[int(number) for number in numbers] for numbers in of_split]


def write_ids(folder: epath.Path, key: Key, ids: np.ndarray) -> None:
    """Writes the ids in the lexicon of the distinct words of a chunk: int32 `[types]`."""
    _write(folder, key, IDS, ids)


def read_ids(folder: epath.Path, key: Key) -> np.ndarray:
    """Returns what `write_ids` wrote."""
    return _read(folder, key, IDS)[0]


def _path(folder: epath.Path, key: Key, suffix: str) -> epath.Path:
    return folder / f"{'-'.join(f'{number:06}' for number in key)}{suffix}"


def _write(folder: epath.Path, key: Key, suffix: str, *arrays: np.ndarray) -> None:
    content = io.BytesIO()
    for array in arrays:
        np.save(content, array)
    data = content.getvalue()
    write_bytes(_path(folder, key, suffix), zlib.crc32(data).to_bytes(4) + data)


def _read(folder: epath.Path, key: Key, suffix: str) -> list[np.ndarray]:
    path = _path(folder, key, suffix)
    content = path.read_bytes()
    data, arrays = io.BytesIO(content[4:]), []
    if zlib.crc32(content[4:]).to_bytes(4) != content[:4]:
        raise UserError(f"{path}: damaged; run the command again")
    while data.tell() < len(content) - 4:
        arrays.append(np.load(data, allow_pickle=False))
    return arrays
