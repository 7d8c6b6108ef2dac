"""Splits text into sentences of words; a worker process does this with one chunk of a source.

A text has one of these formats:
- `lines`: one tokenized sentence per line, with words separated by spaces or tabs (as in 1 Billion Word). Only
  "\\n" or "\\r\\n" ends a line.
- `raw`: running text. Paragraphs are separated by blank lines, a line break inside a paragraph is a space, and
  no sentence crosses paragraphs. Where lines are too long to have been wrapped (`is_unwrapped`), each is a paragraph.
- `documents`: running text, one paragraph per line, with a blank line after each document.
- `document-lines`: running text, one document per line.
- `jsonl` and `parquet`: records with one text each, which is a document of running text (see `pieces`).

Running text is split into sentences by `sentencex` and into words by the Moses tokenizer (`sacremoses`), with which
1 Billion Word was made; so "don't" becomes `don 't`, and "U.S." stays whole. Both know the abbreviations of many
languages. Text whose words are not separated by spaces, such as Chinese, is refused; the user has to split it into
words.
"""

import enum
import functools
import itertools
import operator
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from elmo_jax.characters import BEGIN_SENTENCE_WORD, END_SENTENCE_WORD
from elmo_jax.errors import UserError
from elmo_jax.words import split_words

if TYPE_CHECKING:
    from sacremoses import MosesTokenizer


UNSPACED = (
    "most of this text is in a script without spaces between words; split it into words with a program for its language"
)
# Runs of Thai, Lao, Burmese and Khmer letters, kana, and Chinese characters.
_RUNS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")
_LONG_LINE = 200  # characters; the lines of text that was wrapped to a width are shorter
_SENTENCE_END = re.compile(rb"[.!?][\"')]?\s*$")
_FEWEST_LINES = 20  # that say where lines end
_LONGEST_WORDS = 6  # the mean number of letters between spaces above which they are clauses rather than words
LONG_SENTENCE = 300  # words; longer "sentences" are tables, lists, or text whose sentences could not be separated
_LONG_SPEECH = 100  # words; sentencex treats speech in quotes as one sentence, however long it is
_LONGEST_PARAGRAPH = 20_000  # characters per call; sentencex takes quadratic time if quotes are not closed


Key = tuple[int, int, int]  # the indices of a source, of its part, and of a chunk in the part


class Format(enum.StrEnum):
    """The format of a source's text, as the module's docstring describes."""

    LINES = "lines"
    RAW = "raw"
    DOCUMENTS = "documents"
    DOCUMENT_LINES = "document-lines"
    JSONL = "jsonl"
    PARQUET = "parquet"

    @property
    def has_documents(self) -> bool:
        """Whether files of this format mark where a document ends and the next begins."""
        return self not in (Format.LINES, Format.RAW)


class Errors(enum.StrEnum):
    """The treatment of bytes that are not UTF-8."""

    STRICT = "strict"  # raise an error that names file and line
    REPLACE = "replace"  # read U+FFFD in their place, as in that of NUL, and count the lines


class Piece(NamedTuple):
    """A piece of text that consists of consecutive whole lines of one document."""

    data: bytes  # the bytes of the lines
    name: str  # the name of the file or example, for messages
    first_line: int  # the number of the first line, from 1, for messages
    starts_document: bool  # false if the piece continues the document of the piece before
    read: int = 0  # the bytes of its source's files that were read so far, as they are on disk; for the progress


class Chunk(NamedTuple):
    """About a megabyte of text, the input of one call of `tokenize`."""

    pieces: tuple[Piece, ...]
    format: Format
    errors: Errors = Errors.STRICT
    key: Key = (0, 0, 0)
    language: str = "en"  # the ISO 639 code of the language of running text

    @property
    def read(self) -> int:
        return self.pieces[-1].read


class Tokenized(NamedTuple):
    """The words and sentences of a chunk."""

    types: list[str]  # the distinct words, in the order of their first use
    ids: np.ndarray  # int32 `[words]`, for each word its index into `types`
    lengths: np.ndarray  # int32 `[sentences]`, the number of words of each sentence, never zero
    pieces: np.ndarray  # int32 `[pieces]`, the number of sentences of each piece
    unspaced: list[int]  # the indices of the pieces left out, since their words are not separated by spaces
    counts: dict[str, int]  # the lines without a word, the `<S>` and `</S>` removed, and the lines that are not UTF-8


def tokenize(chunk: Chunk) -> Tokenized:
    """Splits a chunk into sentences of words; a piece whose words are not separated by spaces is left out.

    Raises `UserError` for bytes that are not UTF-8, or NUL, with `Errors.STRICT`.
    """
    words: list[str] = []
    lengths: list[int] = []
    pieces: list[int] = []
    counts = {"empty_lines": 0, "special_words_dropped": 0, "replaced_lines": 0}
    are_words = chunk.format is Format.LINES
    unspaced: list[int] = []
    for index, piece in enumerate(chunk.pieces):
        text, replaced_lines = _decode(piece, chunk.errors, are_words)
        if is_unspaced(text, are_words):
            unspaced.append(index)
            pieces.append(0)
            continue
        counts["replaced_lines"] += replaced_lines
        lines = text.removesuffix("\n").split("\n") if text else []
        sentences_before = len(lengths)
        if are_words:
            sentences: Iterator[list[str]] = (split_words(line.removesuffix("\r")) for line in lines)
        else:
            paragraph_lines = chunk.format in (Format.DOCUMENTS, Format.DOCUMENT_LINES)
            sentences = raw_sentences(lines, paragraph_lines, chunk.language)
        for sentence in sentences:
            if BEGIN_SENTENCE_WORD in sentence or END_SENTENCE_WORD in sentence:
                length = len(sentence)
                sentence = [w for w in sentence if w not in (BEGIN_SENTENCE_WORD, END_SENTENCE_WORD)]
                counts["special_words_dropped"] += length - len(sentence)
            if sentence:
                words += sentence
                lengths.append(len(sentence))
            else:
                counts["empty_lines"] += are_words
        if not are_words:
            counts["empty_lines"] += sum(not line or line.isspace() for line in lines)
        pieces.append(len(lengths) - sentences_before)
    ids = {word: number for number, word in enumerate(dict.fromkeys(words))}
    return Tokenized(
        types=list(ids),
        ids=np.fromiter(map(ids.__getitem__, words), np.int32, len(words)),
        lengths=np.array(lengths, np.int32),
        pieces=np.array(pieces, np.int32),
        unspaced=unspaced,
        counts=counts,
    )


def unspaced_error(piece: Piece) -> UserError:
    """Returns the error for a text whose words are not separated by spaces, from this piece on."""
    advice = "and give one sentence per line with --format lines"
    return UserError(f"{piece.name}, line {piece.first_line}: {UNSPACED}, {advice}")


_INNER_RETURN = re.compile(rb"\r(?!\n|\Z)")


def _decode(piece: Piece, errors: Errors, are_words: bool) -> tuple[str, int]:
    """Returns the text of a piece, and the number of its lines with bytes that are not UTF-8, or NUL.

    Where lines have words, a carriage return inside a line is treated like those bytes.
    """
    data = piece.data.removeprefix(b"\xef\xbb\xbf") if piece.first_line == 1 else piece.data
    offset, what = data.find(0), "is NUL, as in UTF-16 or binary files; convert the file to UTF-8"
    inner = _INNER_RETURN.search(data) if are_words and b"\r" in data else None
    if inner:
        offset, what = inner.start(), "is a carriage return inside a line; end lines with line feeds"
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        offset, what = error.start, "is not UTF-8; convert the file to UTF-8"
    if offset < 0:
        return text, 0
    if errors is Errors.STRICT:
        line = piece.first_line + data.count(b"\n", 0, offset)
        byte = f"byte 0x{data[offset]:02x}"
        raise UserError(f"{piece.name}, line {line}: {byte} {what}, or continue with --errors=replace")
    data = _INNER_RETURN.sub(b"\0", data) if inner else data
    lines = [line.decode(errors="replace").replace("\0", "\ufffd") for line in data.split(b"\n")]
    return "\n".join(lines), sum(text.encode() != line for text, line in zip(lines, data.split(b"\n"), strict=True))


# The bullet or number of a list item. sentencex does not look for sentences after "• " or "(3) ", and treats "3. " as
# a whole sentence; so it gets the text without them.
_LIST_MARK = re.compile(r"(?:[•·▪‣*] ?|\(?(?:[0-9]{1,3}|[A-Za-z]|[ivxIVX]{1,5})[.)] )+")
# Moses splits off a dash that is a single character ("—"), but not one that is typed as two hyphens.
_DASH = re.compile(r"-{2,}")
# Moses does not split off a single quote that opens speech. Before a lower-case letter it may belong to 'em or 'twas.
_OPENING_QUOTE = re.compile(r"(?<![^\s(\[\"])'(?=[A-Z](?!is\b|was\b|were\b|em\b))")
# 1 Billion Word has straight quotes only; otherwise Moses would split "don’t" into three words.
_QUOTES = re.compile('["“”«»]')
_OPENING_QUOTES = re.compile('(?<=\\s)["“«]+$')
_STRAIGHT = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"'})


def raw_sentences(lines: Iterable[str], paragraph_lines: bool = False, language: str = "en") -> Iterator[list[str]]:
    """Yields the words of each sentence of running text; never an empty list.

    Blank lines end a paragraph. Unless each line is one (`paragraph_lines`), that is decided for each group of lines
    between empty ones. `language` is an ISO 639 code.
    """
    tokenizer = _moses(language)
    paragraphs = (" ".join(line.split()) for line in lines) if paragraph_lines else _paragraphs(lines)
    for paragraph in paragraphs:
        for sentence in split_sentences(paragraph, language):
            text = unicodedata.normalize("NFC", sentence).translate(_STRAIGHT)
            text = _OPENING_QUOTE.sub("' ", _DASH.sub(" -- ", text))
            # Without `escape=False`, "&" would become "&amp;". The tokens are split once more, since the tokenizer and
            # str.split differ in which characters they treat as spaces.
            words = " ".join(tokenizer.tokenize(text, escape=False)).split()
            if words:
                yield words


def split_sentences(paragraph: str, language: str = "en") -> list[str]:
    """Splits a paragraph without line breaks into sentences; the mark of a list item stays with its first sentence."""
    from sentencex import segment  # whose sentences, one after the other, are the text

    mark = _LIST_MARK.match(paragraph)
    start = mark.end() if mark else 0
    sentences: list[str] = []
    for part in _short_parts(paragraph[start:]):
        for sentence in segment(language, part):
            is_long = sentence.count(" ") >= _LONG_SPEECH
            sentences += _speech_sentences(sentence, language) if is_long else [sentence]
    sentences = [stripped for sentence in sentences if (stripped := sentence.strip())]
    if mark:
        sentences[:1] = [" ".join([mark.group().strip(), *sentences[:1]])]
    return sentences


def _speech_sentences(text: str, language: str) -> Iterator[str]:
    """Yields the sentences of a long speech, which sentencex finds if quotes are replaced by spaces."""
    from sentencex import segment

    start = end = 0
    for length in map(len, segment(language, _QUOTES.sub(" ", text))):
        end += length
        # A quote that opens the next sentence belongs to that sentence.
        opening = _OPENING_QUOTES.search(text, start, end)
        cut = opening.start() if opening else end
        yield text[start:cut]
        start = cut
    yield text[start:]


def _short_parts(paragraph: str) -> Iterator[str]:
    start = 0
    while len(paragraph) - start > _LONGEST_PARAGRAPH:
        end = start + _LONGEST_PARAGRAPH
        # After a full stop, or else at a space.
        cut = paragraph.rfind(". ", start, end) + 1 or paragraph.rfind(" ", start, end) + 1 or end
        yield paragraph[start:cut]
        start = cut
    yield paragraph[start:]


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    for empty, group in itertools.groupby((" ".join(line.split()) for line in lines), key=operator.not_):
        if empty:
            continue
        block = list(group)
        yield from block if is_unwrapped(block) else [" ".join(block)]


@functools.cache
def _moses(language: str) -> "MosesTokenizer":
    """Returns the tokenizer of a language, made once per process since it reads lists of abbreviations from files."""
    from sacremoses import MosesTokenizer

    return MosesTokenizer(language)


def is_unspaced(text: str, are_words: bool) -> bool:
    """Returns whether most letters of a text are of scripts without spaces between words, and it is not split.

    If its words should be separated by spaces (`are_words`), it counts as not split only if there are as many such
    letters between two spaces as clauses have; otherwise it always does.
    """
    letters = sum(map(len, _RUNS.findall(text)))
    if not letters or 2 * letters < sum(map(str.isalpha, text)):
        return False
    words = sum(_RUNS.search(word) is not None for word in text.split())
    return not are_words or letters > _LONGEST_WORDS * words


def is_unwrapped(lines: Sequence[str] | Sequence[bytes]) -> bool:
    """Returns whether a tenth of the text is in longer lines than wrapped text has, so that each is a paragraph."""
    long = sum(len(line) for line in lines if len(line) > _LONG_LINE)
    return 10 * long > sum(map(len, lines))


def end_sentences(lines: Sequence[bytes]) -> bool:
    """Returns whether three quarters of the lines end where sentences do; fewer than 20 lines are too few to tell."""
    ends = sum(_SENTENCE_END.search(line) is not None for line in lines)
    return len(lines) >= _FEWEST_LINES and 4 * ends >= 3 * len(lines)
