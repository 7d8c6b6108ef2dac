"""Cuts a text file into pieces at blank lines, document ends or line ends, and joins pieces into chunks of work."""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol

from elmo_jax.data.prepare.options import check_separates_words
from elmo_jax.data.prepare.text import Chunk, Errors, Format, Piece
from elmo_jax.errors import UserError

LONGEST_LINE = 1 << 24  # bytes; a longer line is not a sentence or a paragraph, and would have to fit in memory
BLANK_LINE, _LINE_END = re.compile(rb"\n[ \t\r]*\n"), re.compile(rb"\n")
CHUNK_BYTES = 1 << 20  # per call of a worker: much work compared to the overhead of a call, and little memory


class Source(Protocol):
    """A text whose format is known."""

    @property
    def name(self) -> str:
        """The name that the user gave."""

    @property
    def format(self) -> Format:
        """The format of the text."""

    @property
    def reason(self) -> str:
        """The reason for the format, in a few words, if the format was guessed; otherwise empty."""

    @property
    def has_documents(self) -> bool:
        """Whether the source marks where a document ends and the next begins; a single file of text does not."""

    def identity(self, digests: Iterator[tuple[str, int]]) -> dict[str, Any]:
        """Returns what identifies the text, independently of its location; equal for equal text.

        Args:
          digests: the SHA-256 and the size of the next files (`file_digest`), of which the source takes its own.
        """

    def parts(self) -> Iterator["Source"]:
        """Yields consecutive parts of the text, each of which begins a document and can be read without the others."""

    def pieces(self) -> Iterator[Piece]:
        """Yields the text in order, in pieces of whole lines of about `CHUNK_BYTES` or less."""


def file_pieces(file: IO[bytes], path: Path, format: Format) -> Iterator[Piece]:
    """Cuts a file into pieces: at blank lines if it is raw, so that no paragraph is cut, otherwise at line ends."""
    line, waiting = 1, b""
    while block := file.read(CHUNK_BYTES):
        waiting += block
        cut = _last_cut(waiting, format)
        if cut:
            yield Piece(waiting[:cut], str(path), line, starts_document=line == 1)
            line += waiting.count(b"\n", 0, cut)
            waiting = waiting[cut:]
        elif len(waiting) > LONGEST_LINE:
            raise UserError(
                f"{path}, line {line}: longer than {LONGEST_LINE >> 20} MiB; "
                "break the text into lines (lines: one sentence each; raw: paragraphs)"
            )
    if waiting:
        yield Piece(waiting, str(path), line, starts_document=line == 1)


def document_pieces(file: IO[bytes], path: Path, format: Format) -> Iterator[Piece]:
    """Cuts a file where its documents end; a document of more than 2 * `CHUNK_BYTES` is cut at line ends as well."""
    line, waiting, starts = 1, b"", True
    while block := file.read(CHUNK_BYTES):
        waiting += block
        begin = 0
        for match in (_LINE_END if format is Format.DOCUMENT_LINES else BLANK_LINE).finditer(waiting):
            end = match.end()
            yield Piece(waiting[begin:end], str(path), line, starts_document=starts)
            line += waiting.count(b"\n", begin, end)
            begin, starts = end, True
        waiting = waiting[begin:]
        # The rest begins with a line of text, so that the blank line after the document is not separated from it.
        if len(waiting) >= 2 * CHUNK_BYTES and (end := waiting.rfind(b"\n", 0, len(waiting.rstrip())) + 1):
            yield Piece(waiting[:end], str(path), line, starts_document=starts)
            line += waiting.count(b"\n", 0, end)
            waiting, starts = waiting[end:], False
        if len(waiting) > LONGEST_LINE:
            raise UserError(f"{path}, line {line}: longer than {LONGEST_LINE >> 20} MiB; break it into lines")
    if waiting:
        yield Piece(waiting, str(path), line, starts_document=starts)


def _last_cut(data: bytes, format: Format) -> int:
    cut = 0
    if format is Format.RAW:
        for match in BLANK_LINE.finditer(data):
            cut = match.end()
        # Text without blank lines would have to fit in memory; such a paragraph is cut at the end of a line.
        if cut or len(data) < 2 * CHUNK_BYTES:
            return cut
    return data.rfind(b"\n") + 1


def chunks(sources: Iterable[Source], errors: Errors, language: str | None = None) -> Iterator[Chunk]:
    """Yields the text of all sources in order, in chunks of about `CHUNK_BYTES`."""
    for part in parts(sources, errors, language or "en"):
        yield from part.chunks()


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a source, which can be read without the others."""

    source: Source
    key: tuple[int, int]  # the indices of the source, and of the part in it
    errors: Errors
    language: str

    def chunks(self) -> Iterator[Chunk]:
        """Yields the text in order, in chunks of about `CHUNK_BYTES`."""
        waiting: list[Piece] = []
        size = number = 0

        def chunk() -> Chunk:
            return Chunk(tuple(waiting), self.source.format, self.errors, (*self.key, number), self.language)

        for piece in self.source.pieces():
            waiting.append(piece)
            size += len(piece.data) + 64  # 64 for each piece, so that a million empty examples are not one chunk
            if size >= CHUNK_BYTES:
                yield chunk()
                waiting, size, number = [], 0, number + 1
        if waiting:
            yield chunk()


def parts(sources: Iterable[Source], errors: Errors, language: str) -> Iterator[Part]:
    """Yields the parts of all sources in order.

    Raises:
      UserError: a source is running text in a language that does not separate words by spaces.
    """
    for number, source in enumerate(sources):
        if source.format is not Format.LINES:
            check_separates_words(language, source.name)
        for index, part in enumerate(source.parts()):
            yield Part(part, (number, index), errors, language)
