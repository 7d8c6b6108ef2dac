"""Text to sentences of words: what a worker process does with one chunk of a source.

A text is laid out in one of these formats:
- `lines`: one tokenised sentence per line, words separated by blanks (as 1 Billion Word). Lines end with "\\n" only.
- `raw`: running English text. Paragraphs are separated by blank lines, a line break inside a paragraph is a blank, and
  no sentence runs across paragraphs. Where lines are too long to be wrapped (`is_unwrapped`), each is a paragraph.
- `documents`: running English text, one paragraph per line, with a blank line after each document.
- `document-lines`: running English text, one document per line.
- `jsonl` and `parquet`: records with a text each, which is a document of running English text (see `records`).

Running text is split into sentences by `sentencex` and into words by the Moses tokeniser (`sacremoses`), the one that
1 Billion Word was made with, so "don't" is `don 't` and "U.S." stays whole.
"""

import dataclasses
import enum
import functools
import itertools
import operator
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from elmo_jax.characters import BEGIN_SENTENCE_WORD, END_SENTENCE_WORD
from elmo_jax.errors import UserError

if TYPE_CHECKING:
    from sacremoses import MosesTokenizer


LONG_SENTENCE = 300  # words; longer "sentences" are tables, lists, or text whose sentences could not be told apart
_LONG_LINE = 200  # characters; text that was wrapped to a width has shorter lines
_LONG_SPEECH = 100  # words; sentencex takes speech in quotes for one sentence, however long it is
_LONGEST_PARAGRAPH = 20_000  # characters split at once: sentencex takes quadratic time where quotes are not closed


class Format(enum.StrEnum):
    """How a source's text is laid out."""

    LINES = "lines"
    RAW = "raw"
    DOCUMENTS = "documents"
    DOCUMENT_LINES = "document-lines"
    JSONL = "jsonl"
    PARQUET = "parquet"

    @property
    def has_documents(self) -> bool:
        """Whether a file of this format says where one document ends and the next begins."""
        return self not in (Format.LINES, Format.RAW)

    @property
    def has_paragraph_lines(self) -> bool:
        """Whether every line is a paragraph."""
        return self in (Format.DOCUMENTS, Format.DOCUMENT_LINES)


class Errors(enum.StrEnum):
    """What to do about bytes that are not UTF-8."""

    STRICT = "strict"  # stop, naming file and line
    REPLACE = "replace"  # read U+FFFD in their place, and count the lines


@dataclasses.dataclass(frozen=True)
class Piece:
    """Consecutive whole lines of one document.

    `name` and `first_line` (from 1) are for messages. `starts_document` is false where the piece goes
    on with the document of the piece before.
    """

    data: bytes
    name: str
    first_line: int
    starts_document: bool


@dataclasses.dataclass(frozen=True)
class Chunk:
    """About a megabyte of text: what one call of `tokenise` takes."""

    pieces: tuple[Piece, ...]
    format: Format
    errors: Errors = Errors.STRICT
    source: int = 0  # which of the sources the pieces are of


@dataclasses.dataclass(frozen=True)
class Tokenised:
    """The words of a chunk.

    Attributes:
        types: the distinct words, in the order of their first use.
        ids: int32 `[words]`, indices into `types`.
        lengths: int32 `[sentences]`, words in each sentence, none zero.
        pieces: int32 `[pieces]`, sentences in each piece.
        empty_lines: lines without a word (in running text, those between paragraphs or documents).
        marks_dropped: `<S>` and `</S>` found in the text and left out.
        replaced_lines: lines with bytes that are not UTF-8.
    """

    types: list[str]
    ids: np.ndarray
    lengths: np.ndarray
    pieces: np.ndarray
    empty_lines: int
    marks_dropped: int
    replaced_lines: int


def tokenise(chunk: Chunk) -> Tokenised:
    """Turn a chunk into sentences of words.

    Raises:
        UserError: bytes that are not UTF-8, with `Errors.STRICT`; names file and line.
    """
    words: list[str] = []
    lengths: list[int] = []
    pieces: list[int] = []
    empty_lines = marks_dropped = replaced_lines = 0
    for piece in chunk.pieces:
        text, replaced = _decode(piece, chunk.errors)
        replaced_lines += replaced
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()  # what follows the last line's end is no line
        sentences_before = len(lengths)
        if chunk.format is Format.LINES:
            sentences: Iterator[list[str]] = map(str.split, lines)
        else:
            sentences = raw_sentences(lines, chunk.format.has_paragraph_lines)
        blanks = 0
        for sentence in sentences:
            if BEGIN_SENTENCE_WORD in sentence or END_SENTENCE_WORD in sentence:
                found = len(sentence)
                sentence = [w for w in sentence if w not in (BEGIN_SENTENCE_WORD, END_SENTENCE_WORD)]
                marks_dropped += found - len(sentence)
            if sentence:
                words += sentence
                lengths.append(len(sentence))
            else:
                blanks += 1
        if chunk.format is not Format.LINES:
            blanks = sum(not line or line.isspace() for line in lines)
        empty_lines += blanks
        pieces.append(len(lengths) - sentences_before)
    index = {word: i for i, word in enumerate(dict.fromkeys(words))}
    return Tokenised(
        types=list(index),
        ids=np.fromiter(map(index.__getitem__, words), np.int32, len(words)),
        lengths=np.array(lengths, np.int32),
        pieces=np.array(pieces, np.int32),
        empty_lines=empty_lines,
        marks_dropped=marks_dropped,
        replaced_lines=replaced_lines,
    )


def _decode(piece: Piece, errors: Errors) -> tuple[str, int]:
    """Return a piece's text and its number of lines that are not UTF-8."""
    data = piece.data.removeprefix(b"\xef\xbb\xbf") if piece.first_line == 1 else piece.data
    try:
        return data.decode(), 0
    except UnicodeDecodeError as error:
        if errors is Errors.STRICT:
            line = piece.first_line + data.count(b"\n", 0, error.start)
            raise UserError(
                f"{piece.name}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8; "
                "convert the file to UTF-8, or read on with --errors=replace"
            ) from None
    text = data.decode(errors="replace")
    return text, sum(not _is_utf8(line) for line in data.split(b"\n"))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# A list's bullet or number. sentencex does not look for sentences after "• " or "(3) ", and takes "3. "
# for a sentence of its own, so it is shown the text without them.
_LIST_MARK = re.compile(r"(?:[•·▪‣*] ?|\(?(?:[0-9]{1,3}|[A-Za-z]|[ivxIVX]{1,5})[.)] )+")
# Moses splits off a dash that is a character of its own ("—") but not one typed as two hyphens.
_DASH = re.compile(r"-{2,}")
# Moses leaves a single quote that opens speech with its word. Before a small letter it may be 'em or 'twas.
_OPENING_QUOTE = re.compile(r"(?<![^\s(\[\"])'(?=[A-Z](?!is\b|was\b|were\b|em\b))")
# 1 Billion Word has straight quotes only; Moses would otherwise take "don’t" for three words.
_QUOTES = re.compile('["“”«»]')
_OPENING_QUOTES = re.compile('(?<=\\s)["“«]+$')
_STRAIGHT = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"'})


def raw_sentences(lines: Iterable[str], paragraph_lines: bool = False) -> Iterator[list[str]]:
    """Splits running English text into sentences of words.

    Args:
      lines: its lines; blank ones end a paragraph.
      paragraph_lines: whether every line is a paragraph. Otherwise that is decided between one blank line and the
        next, see `_paragraphs`.

    Yields:
      The words of each sentence; never an empty list.
    """
    tokenizer = _moses()
    paragraphs = (" ".join(line.split()) for line in lines) if paragraph_lines else _paragraphs(lines)
    for paragraph in paragraphs:
        for sentence in split_sentences(paragraph):
            text = unicodedata.normalize("NFC", sentence).translate(_STRAIGHT)
            text = _OPENING_QUOTE.sub("' ", _DASH.sub(" -- ", text))
            # Not escaped: `&amp;` is not how the word is spelt. Split once more, since a
            # tokeniser's idea of a blank is not str.split's.
            words = " ".join(tokenizer.tokenize(text, escape=False)).split()
            if words:
                yield words


def split_sentences(paragraph: str) -> list[str]:
    """Splits one paragraph (no line breaks) into sentences; a list's mark stays with its first sentence."""
    mark = _LIST_MARK.match(paragraph)
    start = mark.end() if mark else 0
    sentences: list[str] = []
    for part in _short_parts(paragraph[start:]):
        for sentence in _segments(part):
            sentences += _speech_sentences(sentence) if sentence.count(" ") >= _LONG_SPEECH else [sentence]
    sentences = [stripped for sentence in sentences if (stripped := sentence.strip())]
    if mark:
        sentences[:1] = [" ".join([mark.group().strip(), *sentences[:1]])]
    return sentences


def _segments(text: str) -> list[str]:
    """The sentences of a text as sentencex finds them; side by side they are the text."""
    from sentencex import segment

    return list(segment("en", text))


def _speech_sentences(text: str) -> Iterator[str]:
    """The sentences of a long speech, which are looked for with the quotes around them left out of sight."""
    start = end = 0
    for length in map(len, _segments(_QUOTES.sub(" ", text))):
        end += length
        # a quote that opens the next sentence belongs to it
        opening = _OPENING_QUOTES.search(text, start, end)
        cut = opening.start() if opening else end
        yield text[start:cut]
        start = cut
    yield text[start:]


def _short_parts(paragraph: str) -> Iterator[str]:
    """Cuts a paragraph into parts of at most `_LONGEST_PARAGRAPH` characters: after a full stop, else at a blank."""
    start = 0
    while len(paragraph) - start > _LONGEST_PARAGRAPH:
        end = start + _LONGEST_PARAGRAPH
        cut = paragraph.rfind(". ", start, end) + 1 or paragraph.rfind(" ", start, end) + 1 or end
        yield paragraph[start:cut]
        start = cut
    yield paragraph[start:]


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """The paragraphs of a text, each with single blanks between its words."""
    for blank, group in itertools.groupby((" ".join(line.split()) for line in lines), key=operator.not_):
        if blank:
            continue
        block = list(group)
        if is_unwrapped(block):
            yield from block
        else:
            yield " ".join(block)


def is_unwrapped(lines: Sequence[str] | Sequence[bytes]) -> bool:
    """Whether each of some consecutive lines is a paragraph, since a tenth of them is longer than anybody wraps to."""
    long = sum(len(line) for line in lines if len(line) > _LONG_LINE)
    return 10 * long > sum(map(len, lines))


@functools.cache
def _moses() -> "MosesTokenizer":
    """The tokeniser; made once a process, since it reads its lists of abbreviations."""
    from sacremoses import MosesTokenizer

    return MosesTokenizer("en")
