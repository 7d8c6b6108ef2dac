"""Reads files in pieces, and joins pieces into chunks of work.

Text is cut at blank lines, document ends or line ends. Files of records have one text each: JSON lines (`.jsonl`,
`.ndjson`), which may be compressed, and Parquet (`.parquet`).
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

from elmo_jax.data.prepare.options import check_separates_words
from elmo_jax.data.prepare.text import Chunk, Errors, Format, Piece
from elmo_jax.errors import UserError
from elmo_jax.files import AnyPath
from elmo_jax.text_files import reading

if TYPE_CHECKING:
    from elmo_jax.data.prepare.sources import Source

LONGEST_LINE = 1 << 24  # bytes; a longer line is not a sentence or a paragraph, and would have to fit in memory
BLANK_LINE, _LINE_END = re.compile(rb"\n[ \t\r]*\n"), re.compile(rb"\n")
LONGEST_RECORD = 1 << 28  # bytes; a line must fit in memory several times
_ROWS_AT_ONCE = 256
CHUNK_BYTES = 1 << 20  # per call of a worker: much work compared to the overhead of a call, and little memory


def text_pieces(file: IO[bytes], path: AnyPath, format: Format) -> Iterator[Piece]:
    """Cuts a file into its documents if the format marks them, at blank lines if it is raw, and otherwise at line ends.

    What has more than 2 * `CHUNK_BYTES` without such a cut is cut at a line end, since it would have to fit in memory.
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


def json_pieces(file: IO[bytes], path: AnyPath, field: str, errors: Errors = Errors.STRICT) -> Iterator[Piece]:
    """Yields the texts of a file with one JSON object per line; each text is a document, and blank lines are skipped.

    With `Errors.REPLACE`, a text whose bytes are not UTF-8 is passed on unchanged, to be treated as in any other file.
    """
    number = 0
    while line := file.readline(LONGEST_RECORD):
        number += 1
        if len(line) == LONGEST_RECORD:
            raise UserError(f"{path}, line {number}: longer than {LONGEST_RECORD >> 20} MiB; divide the record")
        if line := line.strip():
            text = _json_text(line, f"{path}, line {number}", field, errors)
            yield _document(text, f"{path}, record on line {number}")


def _json_text(line: bytes, where: str, field: str, errors: Errors) -> str:
    try:
        # A byte that is not UTF-8 becomes a lone surrogate, and `_document` makes it the same byte again.
        decoded = line.decode("utf-8", "strict" if errors is Errors.STRICT else "surrogateescape")
    except UnicodeDecodeError as error:
        remedy = "convert the file to UTF-8, or continue with --errors=replace"
        raise UserError(f"{where}: byte 0x{line[error.start]:02x} is not UTF-8; {remedy}") from None
    try:
        record = json.loads(decoded)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error}); expected one JSON object per line") from None
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected a JSON object with a text in {field!r}, got {_kind(record)}")
    if field not in record:
        raise UserError(f"{where}: no {field!r}; name the text's field with --field; there are: {', '.join(record)}")
    text = record[field]
    if not isinstance(text, str):
        raise UserError(f"{where}: {field!r} is {_kind(text)}; expected a text; name another field with --field")
    return text


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def parquet_pieces(path: AnyPath, field: str) -> Iterator[Piece]:
    """Yields the texts of a column of a Parquet file; each text is a document, and rows with null are skipped."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"{path}: Parquet needs pyarrow; run: pip install 'elmo_jax[parquet]'") from None
    with reading(path), path.open("rb") as opened:
        try:
            file = parquet.ParquetFile(opened)
            schema = file.schema_arrow
            if field not in schema.names:
                there = ", ".join(schema.names)
                raise UserError(f"{path}: no column {field!r}; name the text's column with --field; there are: {there}")
            kind = schema.field(field).type
            if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                raise UserError(f"{path}: the column {field!r} holds {kind}; expected strings; name another by --field")
            row = 0
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[field], use_threads=False):
                for text in batch.column(0).to_pylist():
                    row += 1
                    if text is not None:
                        yield _document(text, f"{path}, row {row}")
        except pyarrow.ArrowException as error:
            reason = str(error).partition("\n")[0]
            raise UserError(f"{path}: the Parquet file is damaged or not a Parquet file ({reason})") from None


def _document(text: str, name: str) -> Piece:
    # A lone surrogate, which stands for a byte that is not UTF-8 or is expressed in JSON, becomes such bytes.
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = text.encode("utf-8", "surrogatepass")
    return Piece(data, name, 1, starts_document=True)


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
    """Yields the parts of all sources in order; running text must be in a language that separates words by spaces."""
    for number, source in enumerate(sources):
        if source.format is not Format.LINES:
            check_separates_words(language, source.name)
        of_source: Iterator[Source] = source.parts()
        for index, part in enumerate(of_source):
            yield Part(part, (number, index), errors, language)
