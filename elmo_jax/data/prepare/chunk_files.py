"""Chunks of a text: which of their sentences are held out, and the files of those that were tokenized.

A file appears completely or not at all, and begins with a checksum and a summary, from which the text is divided. So a
command that was stopped continues with the files that it has finished, and a worker that repeats another's work does no
harm.

A unit is a part of the text that is held out, or trained on, as a whole: a document or, where these are not marked or
the fraction is less than one, a run of `SENTENCES_PER_UNIT` sentences, or one sentence of a text that has no more. The
number of a unit decides, so that a chunk can be divided without the others, once the units before it are counted.
"""

import io
import json
import zlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from elmo_jax.data.lexicon import LONG_WORD
from elmo_jax.data.prepare.text import LONG_SENTENCE, Chunk, Key, tokenize, unspaced_error
from elmo_jax.errors import UserError
from elmo_jax.files import write_bytes

SENTENCES_PER_UNIT = 100
Sizes = list[list[int]]  # of a chunk, documents, sentences and words per split
PIECE, IDS = ".piece", ".ids"  # the suffixes of the files of a chunk


class Boundaries(NamedTuple):
    """The sentences of a chunk, in relation to the documents that begin in it."""

    sentences: int  # all
    begun: int  # the documents whose first sentence is here
    continues: bool  # whether there is a first sentence, and the pieces of the chunk begin no document with it
    ends_with_start: bool  # whether a document begins after the last sentence; its sentences are in later chunks

    @classmethod
    def of(cls, starts: np.ndarray, sentences: int) -> "Boundaries":
        """Summarizes a chunk of `sentences` sentences, of which `starts` `[documents]`, ascending, begin documents."""
        begun = int(np.count_nonzero(starts < sentences))
        return cls(sentences, begun, sentences > 0 and 0 not in starts, begun < len(starts))


class Planned(NamedTuple):
    """A chunk, and the rule by which its sentences are held out."""

    key: Key
    first: int  # the number of the document that the first sentence continues, or before the one that it begins
    begins: bool  # whether the first sentence begins a document that the chunk before has announced
    offset: int  # the sentences before the chunk
    size: int  # the sentences per unit; 0 for documents
    units: int  # the number of units of the text
    fraction: float  # the fraction of the units to hold out

    @classmethod
    def of_json(cls, value: Any) -> "Planned":
        return cls(tuple(value[0]), *value[1:])

    def divide(self, starts: np.ndarray, sentences: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns which sentences are held out, and which begin documents: bool `[sentences]`; for `Boundaries.of`."""
        begin = np.zeros(sentences, bool)
        begin[starts[starts < sentences]] = True
        begin[:1] |= self.begins
        if self.size:
            numbers = (self.offset + np.arange(sentences)) // self.size  # of the units, from 0
        else:
            numbers = self.first + np.cumsum(begin)
        # 3 * 0.1 > 0.3 in floating point
        up, down = Fraction(str(self.fraction)).limit_denominator(10**6).as_integer_ratio()
        if self.fraction and self.units > 1 and self.units * up < down:  # the fraction is less than one unit
            return numbers == self.units - 1, begin
        return (numbers + 1) * up // down > numbers * up // down, begin


def divide(chunks: Sequence[tuple[Key, Boundaries]], has_documents: bool, fraction: float) -> list[Planned]:
    """Divides the chunks of a text into units, of which a fraction is held out."""
    documents, offset, reduced = 0, 0, True
    before = []
    for key, chunk in chunks:
        begins = reduced and chunk.continues
        before.append((key, documents - 1, begins, offset))
        documents += begins + chunk.begun
        offset += chunk.sentences
        reduced = chunk.ends_with_start or (reduced and not chunk.sentences)
    size, units = 0, documents
    if not has_documents or 0 < documents * fraction < 1:
        size = SENTENCES_PER_UNIT if offset > SENTENCES_PER_UNIT else 1
        units = -(-offset // size)
    return [Planned(*chunk, size, units, fraction) for chunk in before]


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
        key, text_bytes, words, bounds, *others = value
        return cls(tuple(key), text_bytes, words, Boundaries(*bounds), *others)


class ChunkText(NamedTuple):
    """The words of a chunk."""

    types: list[str]  # the distinct words, in the order of their first use
    ids: np.ndarray  # int32 `[words]`, for each word its index into `types`
    lengths: np.ndarray  # int32 `[sentences]`, the number of words of each sentence
    starts: np.ndarray  # int32 `[documents]`, the sentences that begin documents, each once


def write_chunk(chunk: Chunk, folder: epath.Path) -> tuple[Summary, bool]:
    """Tokenizes a chunk into its file, unless that is there and whole; returns its summary, and whether it was."""
    try:
        return Summary.of_json(json.loads(read_arrays(folder, chunk.key, PIECE)[0].tobytes())), True
    except (FileNotFoundError, UserError):
        pass
    tokenized = tokenize(chunk)
    before = np.concatenate([[0], np.cumsum(tokenized.pieces)])  # the sentences before each piece
    starts = np.unique(before[np.flatnonzero([piece.starts_document for piece in chunk.pieces])]).astype(np.int32)
    long = tokenized.lengths[tokenized.lengths > LONG_SENTENCE]
    is_long_word = np.fromiter((len(word.encode()) > LONG_WORD for word in tokenized.types), bool, len(tokenized.types))
    unspaced = [chunk.pieces[index] for index in tokenized.unspaced]
    counts = {
        **tokenized.counts,
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
    texts = (np.frombuffer(text.encode(), np.uint8) for text in (json.dumps(summary), "\n".join(tokenized.types)))
    write_arrays(folder, chunk.key, PIECE, *texts, tokenized.ids, tokenized.lengths, starts)
    return summary, False


def read_chunk(folder: epath.Path, key: Key) -> ChunkText:
    """Returns the words of a chunk. Raises `UserError` if its file is damaged."""
    _, types, ids, lengths, starts = read_arrays(folder, key, PIECE)
    return ChunkText(types.tobytes().decode().split("\n") if len(ids) else [], ids, lengths, starts)


def count_words(folder: epath.Path, chunk: Planned) -> tuple[list[str], np.ndarray, Sizes]:
    """Returns the distinct words of a chunk, their counts in the training text, int64 `[types]`, and its sizes."""
    text = read_chunk(folder, chunk.key)
    is_held, begin = chunk.divide(text.starts, len(text.lengths))
    counts = np.bincount(text.ids[np.repeat(~is_held, text.lengths)], minlength=len(text.types))
    sizes = [[(begin & split).sum(), split.sum(), text.lengths[split].sum()] for split in (~is_held, is_held)]
    return text.types, counts, np.array(sizes).tolist()


def _path(folder: epath.Path, key: Key, suffix: str) -> epath.Path:
    return folder / f"{'-'.join(f'{number:06}' for number in key)}{suffix}"


def write_arrays(folder: epath.Path, key: Key, suffix: str, *arrays: np.ndarray) -> None:
    """Writes a file of a chunk; that with `IDS` has the ids in the lexicon of its distinct words, int32 `[types]`."""
    content = io.BytesIO()
    for array in arrays:
        np.save(content, array)
    data = content.getvalue()
    write_bytes(_path(folder, key, suffix), zlib.crc32(data).to_bytes(4) + data)


def read_arrays(folder: epath.Path, key: Key, suffix: str) -> list[np.ndarray]:
    """Returns what `write_arrays` wrote. Raises `UserError` if the file is damaged."""
    path = _path(folder, key, suffix)
    content = path.read_bytes()
    data, arrays = io.BytesIO(content[4:]), []
    if zlib.crc32(content[4:]).to_bytes(4) != content[:4]:
        raise UserError(f"{path}: damaged; run the command again")
    while data.tell() < len(content) - 4:
        arrays.append(np.load(data, allow_pickle=False))
    return arrays
