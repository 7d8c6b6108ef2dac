"""Cuts a text file into pieces at blank lines, document ends or line ends, and joins pieces into chunks of work."""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING

from elmo_jax.data.prepare.options import check_separates_words
from elmo_jax.data.prepare.text import Chunk, Errors, Format, Piece
from elmo_jax.errors import UserError
from elmo_jax.files import AnyPath

if TYPE_CHECKING:
    from elmo_jax.data.prepare.sources import Source

LONGEST_LINE = 1 << 24  # bytes; a longer line is not a sentence or a paragraph, and would have to fit in memory
BLANK_LINE, _LINE_END = re.compile(rb"\n[ \t\r]*\n"), re.compile(rb"\n")
CHUNK_BYTES = 1 << 20  # per call of a worker: much work compared to the overhead of a call, and little memory


def text_pieces(file: IO[bytes], path: AnyPath, format: Format) -> Iterator[Piece]:
    """Cuts a file into its documents if the format marks them, at blank lines if it is raw, and otherwise at line ends.

    What has more than 2 * `CHUNK_BYTES` without such a cut is cut at a line end, since it would have to fit in memory.
    Raises `UserError` if a line is longer than `LONGEST_LINE`.
    """
    cuts = BLANK_LINE if format in (Format.RAW, Format.DOCUMENTS) else _LINE_END
    line, waiting, starts = 1, b"", True
    while block := file.read(CHUNK_BYTES):
        waiting += block
        ends = [match.end() for match in cuts.finditer(waiting)]
        begin = 0
        for end in ends if format.has_documents else ends[-1:]:
            yield Piece(waiting[begin:end], str(path), line, starts_document=starts)
            line += waiting.count(b"\n", begin, end)
            begin, starts = end, format.has_documents
        waiting = waiting[begin:]
        # The rest begins with a line of text, so that the blank line after a document is not separated from it.
        if len(waiting) >= 2 * CHUNK_BYTES and (end := waiting.rfind(b"\n", 0, len(waiting.rstrip())) + 1):
            yield Piece(waiting[:end], str(path), line, starts_document=starts)
            line += waiting.count(b"\n", 0, end)
            waiting, starts = waiting[end:], False
        if len(waiting) > LONGEST_LINE:
            where = f"{path}, line {line}: longer than {LONGEST_LINE >> 20} MiB"
            raise UserError(f"{where}; break the text into lines (lines: one sentence each; raw: paragraphs)")
    if waiting:
        yield Piece(waiting, str(path), line, starts_document=starts)


def chunks(sources: Iterable["Source"], errors: Errors, language: str | None = None) -> Iterator[Chunk]:
    """Yields the text of all sources in order, in chunks of about `CHUNK_BYTES`."""
    for part in parts(sources, errors, language or "en"):
        yield from part.chunks()


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a source, which can be read without the others."""

    source: "Source"
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


def parts(sources: Iterable["Source"], errors: Errors, language: str) -> Iterator[Part]:
    """Yields the parts of all sources in order.

    Raises `UserError` for running text in a language that does not separate words by spaces.
    """
    for number, source in enumerate(sources):
        if source.format is not Format.LINES:
            check_separates_words(language, source.name)
        of_source: Iterator[Source] = source.parts()
        for index, part in enumerate(of_source):
            yield Part(part, (number, index), errors, language)
