"""Reads the sources that the user names on the command line as chunks of text.

A source is a text file, a folder (read recursively) or a glob, plain or compressed (`.gz`, `.xz`, `.zst`); `tfds:NAME`
(see `tfds_text`); `sotu`, the State of the Union addresses (see `samples.sotu`); or `licenses` (see
`samples.licenses`). The files of a folder or glob are read in the order of their paths. The module `text` describes the
formats.
"""

import dataclasses
import glob
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from elmo_jax.data.corpus import LEXICON, REPORT
from elmo_jax.data.prepare.compressed import open_text, reading
from elmo_jax.data.prepare.progress import say
from elmo_jax.data.prepare.records import json_pieces, parquet_pieces
from elmo_jax.data.prepare.text import Chunk, Errors, Format, Piece, is_unwrapped
from elmo_jax.data.samples.licenses import open_licenses
from elmo_jax.data.samples.sotu import sotu_paths
from elmo_jax.errors import UserError

CHUNK_BYTES = 1 << 20  # per call of a worker: much work compared to the overhead of a call, and little memory
LONGEST_LINE = 1 << 24  # bytes; a longer line is not a sentence or a paragraph, and would have to fit in memory
_SAMPLE_BYTES = 1 << 16  # read to guess the format of a file

_BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")
_SUFFIXES = {".jsonl": Format.JSONL, ".ndjson": Format.JSONL, ".parquet": Format.PARQUET}
_RECORDS = (Format.JSONL, Format.PARQUET)
_COMPRESSED = (".gz", ".xz", ".zst")


class Source(Protocol):
    """A text whose format is known."""

    @property
    def name(self) -> str:
        """The name that the user gave."""
        ...

    @property
    def format(self) -> Format:
        """The format of the text."""
        ...

    @property
    def reason(self) -> str:
        """The reason for the format, in a few words, if the format was guessed; otherwise empty."""
        ...

    @property
    def has_documents(self) -> bool:
        """Whether the source marks where a document ends and the next begins; a single file of text does not."""
        ...

    def identity(self) -> dict[str, Any]:
        """Returns what identifies the text, independently of its location; equal for equal text."""
        ...

    def pieces(self) -> Iterator[Piece]:
        """Yields the text in order, in pieces of whole lines of about `CHUNK_BYTES` or less."""
        ...


@dataclasses.dataclass(frozen=True)
class Files:
    """A source of text files; in the formats `lines` and `raw`, each file is a document."""

    name: str
    paths: tuple[Path, ...]
    format: Format
    reason: str = ""
    field: str = "text"

    @property
    def has_documents(self) -> bool:
        """Whether the format marks documents, or there are several files; one file may hold any number of documents."""
        return self.format.has_documents or len(self.paths) > 1

    def identity(self) -> dict[str, Any]:
        """Returns the number, the bytes and the digest of the files as they are on disk, without names and dates."""
        digest, size = hashlib.sha256(), 0
        for path in self.paths:
            with reading(path), path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
                size += file.tell()
        field = {"field": self.field} if self.format in _RECORDS else {}
        return {"files": len(self.paths), "bytes": size, "sha256": digest.hexdigest(), **field}

    def pieces(self) -> Iterator[Piece]:
        """Yields the text of the files in order.

        Raises:
          UserError: a file is damaged, or a line is longer than `LONGEST_LINE`.
        """
        for path in self.paths:
            match self.format:
                case Format.JSONL:
                    yield from json_pieces(path, self.field)
                case Format.PARQUET:
                    yield from parquet_pieces(path, self.field)
                case Format.DOCUMENTS | Format.DOCUMENT_LINES:
                    yield from _document_pieces(path, self.format)
                case _:
                    yield from _file_pieces(path, self.format)

    def without(self, others: "Files") -> "Files":
        """Returns these files except those of another source.

        Raises:
          UserError: no file is left.
        """
        taken = {path.resolve() for path in others.paths}
        paths = tuple(path for path in self.paths if path.resolve() not in taken)
        if not paths:
            raise UserError(f"{self.name}: all of it is held out by --heldout; nothing is left to train on")
        return dataclasses.replace(self, paths=paths)


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """The options for reading text.

    Attributes:
      format: a `Format`, or `auto`, which means `raw` for `sotu`, `licenses` and TFDS datasets other than `lm1b`; the
        format of files is guessed by `_guess_format`.
      field: the name of the text's field in JSON lines, or of its column in Parquet files.
      errors: `strict`, or `replace` to read U+FFFD in place of bytes that are not UTF-8.
    """

    format: str = "auto"
    field: str = "text"
    errors: str = "strict"

    def __post_init__(self) -> None:
        """Raises `UserError` for an unknown value."""
        if self.format not in ("auto", *Format):
            raise UserError(f"format is {self.format!r}; expected auto, {', '.join(Format)}")
        if self.errors not in tuple(Errors):
            raise UserError(f"errors is {self.errors!r}; expected strict or replace")
        if self.field != TextOptions.field and self.format not in ("auto", *_RECORDS):
            raise UserError(f"field is {self.field!r}, but only {' and '.join(_RECORDS)} have fields; leave it out")


def open_sources(names: Sequence[str], options: TextOptions) -> list[Source]:
    """Finds the sources: files, folders, globs, `tfds:NAME[:SPLIT]`, `sotu`, `licenses`.

    Raises:
      UserError: a source has no name, does not exist, has no text, is a prepared corpus, or has files of several
        formats.
    """
    if not names:
        raise UserError("no source given: name text files, folders, globs, tfds:NAME, sotu or licenses")
    format = None if options.format == "auto" else Format(options.format)
    return [_open_source(name, format, options.field) for name in names]


def say_formats(sources: Iterable[Source], show: bool) -> None:
    """Prints the guessed formats of sources, and the reasons, to standard error if `show` is true."""
    for source in sources:
        if source.reason:
            say(f"{source.name}: read as {source.format}: {source.reason} (--format to change)", show)


def _open_source(name: str, format: Format | None, field: str) -> Source:
    if name == "sotu":
        return Files(name, sotu_paths(), format or Format.RAW)
    if name == "licenses":
        return open_licenses(format)
    if name.startswith("tfds:"):
        from elmo_jax.data.prepare.tfds_text import open_tfds  # imported here, since importing TFDS takes half a second

        return open_tfds(name, format)
    paths = _find_files(name)
    if format:
        return Files(name, paths, format, field=field)
    kinds = {_SUFFIXES.get(_suffix(path)) for path in paths}
    if len(kinds) > 1:
        raise UserError(f"{name}: holds files of records (.jsonl, .parquet) and others; name each kind by its own glob")
    kind = kinds.pop()
    if kind is not None:
        return Files(name, paths, kind, f"its name ends in {_suffix(paths[0])}", field)
    return Files(name, paths, *_guess_format(paths[0]))


def _suffix(path: Path) -> str:
    """Returns the suffix that tells the contents of a file, which precedes that of a compression."""
    return (Path(path.stem) if path.suffix in _COMPRESSED else path).suffix


def _find_files(name: str) -> tuple[Path, ...]:
    if not name.strip():  # which would be the current folder
        raise UserError("the name of a source is empty; name a text file, a folder or a glob")
    path = Path(name).expanduser()
    if path.is_dir() and all((path / part).is_file() for part in (REPORT, LEXICON)):
        raise UserError(f"{name}: a prepared corpus, and not text; give the text that it was prepared from")
    if path.is_dir():
        files = (p for p in path.rglob("*") if p.is_file())
        found = [p for p in files if not any(s.startswith(".") for s in p.relative_to(path).parts)]
        nothing = "the folder holds no text"
    elif path.exists():
        found, nothing = [path], "the file is empty"
    elif glob.has_magic(name):
        found = [p for p in map(Path, glob.glob(str(path), recursive=True)) if p.is_file()]
        nothing = "no file with text matches"
    else:
        raise UserError(f"{name}: no such file or folder")
    found = sorted(p for p in found if not p.is_file() or p.stat().st_size)
    if not found:
        raise UserError(f"{name}: {nothing}")
    return tuple(found)


def _guess_format(path: Path) -> tuple[Format, str]:
    """Guesses the format of a file from its first 64 KiB; returns the format and the reason for it.

    The text is tokenised if commas are words of their own. Otherwise it is running text, and it has one paragraph per
    line if most of the text is in adjacent lines that are too long to have been wrapped.
    """
    with reading(path), open_text(path) as file:
        sample = file.read(_SAMPLE_BYTES)
    words = sample.split()
    alone = words.count(b",")
    attached = sum(word.endswith(b",") for word in words) - alone
    if not alone and not attached:
        return Format.LINES, "it has no commas to judge by, so it is taken for tokenised sentences, one per line"
    if alone >= attached:
        return Format.LINES, "its commas stand alone, so it is taken for tokenised sentences, one per line"
    groups = [group.splitlines() for group in _BLANK_LINE.split(sample.strip())]
    together = [line for group in groups if len(group) > 1 for line in group]
    if 2 * sum(map(len, together)) > len(sample) and is_unwrapped(together):
        return Format.DOCUMENTS, (
            "its commas touch their words, and its lines stand together and are long, so it is taken for running text,"
            " one paragraph per line, with a blank line after each document"
        )
    return Format.RAW, "its commas touch their words, so it is taken for running text"


def _file_pieces(path: Path, format: Format) -> Iterator[Piece]:
    """Cuts a file into pieces: at blank lines if it is raw, so that no paragraph is cut, and else at line ends."""
    line, waiting = 1, b""
    with reading(path), open_text(path) as file:
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


def _document_pieces(path: Path, format: Format) -> Iterator[Piece]:
    """Cuts a file where its documents end; a document of more than 2 * `CHUNK_BYTES` is cut at line ends as well."""
    line, waiting, starts = 1, b"", True
    with reading(path), open_text(path) as file:
        while block := file.read(CHUNK_BYTES):
            waiting += block
            begin = 0
            for end in _document_ends(waiting, format):
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


def _document_ends(data: bytes, format: Format) -> Iterator[int]:
    if format is Format.DOCUMENT_LINES:
        return (match.end() for match in re.finditer(rb"\n", data))
    return (match.end() for match in _BLANK_LINE.finditer(data))


def _last_cut(data: bytes, format: Format) -> int:
    """Returns where the last whole line or paragraph ends, or 0 if there is none."""
    cut = 0
    if format is Format.RAW:
        for match in _BLANK_LINE.finditer(data):
            cut = match.end()
        # Text without blank lines would have to fit in memory; such a paragraph is cut at the end of a line.
        if cut or len(data) < 2 * CHUNK_BYTES:
            return cut
    return data.rfind(b"\n") + 1


def chunks(sources: Iterable[Source], errors: Errors) -> Iterator[Chunk]:
    """Yields the text of all sources in order, in chunks of about `CHUNK_BYTES`."""
    for number, source in enumerate(sources):
        pieces: list[Piece] = []
        size = 0
        for piece in source.pieces():
            pieces.append(piece)
            size += len(piece.data) + 64  # 64 for each piece, so that a million empty examples are not one chunk
            if size >= CHUNK_BYTES:
                yield Chunk(tuple(pieces), source.format, errors, number)
                pieces, size = [], 0
        if pieces:
            yield Chunk(tuple(pieces), source.format, errors, number)
