"""The file of a chunk that was tokenized, and the summary of it from which the text is divided.

A file appears completely or not at all, and begins with a checksum and with what it was made of, so that a command that
was stopped continues with the files that it has finished, and a worker that repeats another's work does no harm.
"""

import io
import json
import secrets
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elmo_jax.data.lexicon import LONG_WORD
from elmo_jax.data.prepare.text import LONG_SENTENCE, Chunk, Key, tokenize, unspaced_error
from elmo_jax.data.prepare.units import Boundaries, Planned, boundaries
from elmo_jax.errors import UserError

Sizes = tuple[tuple[int, int], tuple[int, int]]  # sentences and words of a chunk, to train on and held out
PIECE, IDS = ".piece", ".ids"  # the suffixes of the files of a chunk
_CHECKSUM_BYTES = 4


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


def chunk_path(folder: Path, key: Key, suffix: str = PIECE) -> Path:
    """Returns the path of a file of a chunk."""
    return folder / f"{'-'.join(f'{number:06}' for number in key)}{suffix}"


def write_chunk(chunk: Chunk, folder: Path) -> tuple[Summary, bool]:
    """Tokenizes a chunk into its file, unless that is there and whole; returns its summary, and whether it was.

    Raises:
      UserError: as `tokenize`.
    """
    path = chunk_path(folder, chunk.key)
    try:
        return Summary.of_json(json.loads(_read(path)[0].tobytes())), True
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
    size, left_out = (sum(len(piece.data) for piece in pieces) for pieces in (chunk.pieces, unspaced))
    message = str(unspaced_error(unspaced[0])) if unspaced else ""
    bounds, longest = boundaries(starts, len(tokenized.lengths)), int(tokenized.lengths.max(initial=0))
    summary = Summary(chunk.key, size, len(tokenized.ids), bounds, counts, longest, left_out, message)
    described = np.frombuffer(json.dumps(summary).encode(), np.uint8)
    text = np.frombuffer("\n".join(tokenized.types).encode(), np.uint8)
    _write(path, described, text, tokenized.ids, tokenized.lengths, starts)
    return summary, False


def read_chunk(folder: Path, key: Key) -> ChunkText:
    """Returns the words of a chunk. Raises `UserError` if its file is damaged."""
    _, text, ids, lengths, starts = _read(chunk_path(folder, key))
    return ChunkText(text.tobytes().decode().split("\n") if len(ids) else [], ids, lengths, starts)


def count_words(folder: Path, chunk: Planned) -> tuple[list[str], np.ndarray, Sizes]:
    """Returns the distinct words of a chunk, their counts in the training text, int64 `[types]`, and its sizes."""
    text = read_chunk(folder, chunk.key)
    is_held = chunk.rule.heldout(text.starts, len(text.lengths))
    counts = np.bincount(text.ids[np.repeat(~is_held, text.lengths)], minlength=len(text.types))
    held = int(np.count_nonzero(is_held)), int(text.lengths[is_held].sum())
    return text.types, counts, ((len(text.lengths) - held[0], len(text.ids) - held[1]), held)


def write_ids(folder: Path, key: Key, ids: np.ndarray) -> None:
    """Writes the ids in the lexicon of the distinct words of a chunk: int32 `[types]`."""
    _write(chunk_path(folder, key, IDS), ids)


def read_ids(folder: Path, key: Key) -> np.ndarray:
    """Returns what `write_ids` wrote."""
    return _read(chunk_path(folder, key, IDS))[0]


def _write(path: Path, *arrays: np.ndarray) -> None:
    content = io.BytesIO()
    for array in arrays:
        np.save(content, array)
    data = content.getvalue()
    data = zlib.crc32(data).to_bytes(_CHECKSUM_BYTES) + data
    temporary = path.with_suffix(f".{secrets.token_hex(4)}")  # others may write the same file
    temporary.write_bytes(data)
    temporary.replace(path)


def _read(path: Path) -> list[np.ndarray]:
    content = path.read_bytes()
    data = content[_CHECKSUM_BYTES:]
    if zlib.crc32(data).to_bytes(_CHECKSUM_BYTES) != content[:_CHECKSUM_BYTES]:
        raise UserError(f"{path}: damaged; run the command again")
    stream, arrays = io.BytesIO(data), []
    while stream.tell() < len(data):
        arrays.append(np.load(stream, allow_pickle=False))
    return arrays
