"""Reads documents with coreference in the columns of CoNLL-2012."""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from elmo_jax.tasks.formats.lines import cells
from elmo_jax.text_files import Line, error_at, read_lines
from elmo_jax.words import is_blank

GENRES = ("bc", "bn", "mz", "nw", "pt", "tc", "wb")  # the first letters of the names of CoNLL-2012's documents

Mention = tuple[int, int]  # the first and the last word, counted from 0 over the document
Singletons = Literal["keep", "drop"]  # what happens to clusters of one mention, which OntoNotes does not have

_WORD, _SPEAKER, _COLUMNS = 3, 9, 12
_BEGIN = re.compile(r"#begin document \((.*)\); part ([0-9]{1,9})\s*")
_REFERENCE = re.compile(r"(\()?([0-9]+)(\))?")
_SLASHED = {"/.": ".", "/?": "?"}  # the spellings of these words in some transcripts of CoNLL-2012


@dataclasses.dataclass(frozen=True)
class Document:
    """A part of a document, which is annotated independently."""

    name: str  # the name of the document
    part: str  # the number of the part, spelled as in the file, since the official scorer compares the spellings
    genre: str | None  # the first two letters of the name if they are one of `GENRES`, else None
    sentences: list[list[str]]  # the words of each sentence
    speakers: list[list[str]]  # the speaker of each word as in the file
    # the mentions of each entity in the order of the text, and the entities in the order of their first
    # mention. No mention is in two clusters
    clusters: list[list[Mention]]

    @property
    def id(self) -> str:
        """What names the part in a file; empty for a document without a name."""
        return f"({self.name}); part {self.part}" if self.name else ""


def read(path: Path, singletons: Singletons = "keep") -> list[Document]:
    """Reads a file of documents, each between `#begin document (name); part n` and `#end document`.

    The last column has the coreference: `-` or nothing, or `(12`, `12)` and `(12)` with `|` between them. Mentions of
    one entity may be nested: `12)` closes the last one that was opened. Two entities that have a mention in common are
    merged.

    Raises:
      UserError: a word is outside of a document, a document has no begin or no end, a line has too few columns or
        another number than the first line of its sentence, or a mention is not opened or not closed.
    """
    documents: list[Document] = []
    reading: _Reading | None = None
    line = Line(0, "")
    for line in read_lines(path):
        if line.text.startswith("#begin document"):
            match = _BEGIN.fullmatch(line.text)
            if not match or reading:
                expected = "#end document" if reading else "'#begin document (name); part 0'"
                raise error_at(path, line.number, f"expected {expected}, found {line.text!r}")
            reading = _Reading(path, match[1], match[2])
        elif line.text.startswith("#end document"):
            if not reading:
                raise error_at(path, line.number, "#end document without a #begin document before it")
            documents.append(reading.finish(singletons))
            reading = None
        elif is_blank(line.text):
            if reading:
                reading.end_sentence()
        elif reading:
            reading.add(line)
        else:
            raise error_at(path, line.number, f"expected '#begin document (name); part 0', found {line.text!r}")
    if reading:
        raise error_at(path, line.number, f"the file ends inside the document {reading.name!r}, without #end document")
    return documents


class _Reading:
    """A document that is being read."""

    def __init__(self, path: Path, name: str, part: str) -> None:
        self.path, self.name, self.part = path, name, part
        self.sentences: list[list[str]] = [[]]  # the last one is being read
        self.speakers: list[list[str]] = [[]]
        self.words = self.columns = 0  # the number of words, and that of the columns of the line before
        # the first word and the line of open mentions, by entity
        self.open: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self.entities: defaultdict[str, list[Mention]] = defaultdict(list)

    def add(self, line: Line) -> None:
        """Adds a word."""
        row = cells(line.text)
        if len(row) < _COLUMNS:
            raise error_at(self.path, line.number, f"expected at least {_COLUMNS} columns, found {len(row)}")
        if self.sentences[-1] and len(row) != self.columns:
            message = f"expected {self.columns} columns, as in the first line of the sentence, found {len(row)}"
            raise error_at(self.path, line.number, message)
        self.columns = len(row)
        for reference in row[-1].split("|") if row[-1] not in ("-", "") else []:
            match = _REFERENCE.fullmatch(reference)
            if not match or not (match[1] or match[3]):
                expected = f"expected -, (12, 12) or (12) as coreference, found {reference!r}"
                raise error_at(self.path, line.number, expected)
            opens, entity, closes = match.groups()
            if opens:
                self.open[entity].append((self.words, line.number))
            if closes:
                if not self.open[entity]:
                    raise error_at(self.path, line.number, f"'{entity})' closes a mention that was not opened")
                self.entities[entity].append((self.open[entity].pop()[0], self.words))
        self.sentences[-1].append(_SLASHED.get(row[_WORD], row[_WORD]))
        self.speakers[-1].append(row[_SPEAKER])
        self.words += 1

    def end_sentence(self) -> None:
        """Ends the sentence if one has begun."""
        if self.sentences[-1]:
            self.sentences.append([])
            self.speakers.append([])

    def finish(self, singletons: Singletons) -> Document:
        """Ends the document and returns it."""
        self.end_sentence()
        unclosed = [(number, entity) for entity, mentions in self.open.items() for _, number in mentions]
        if unclosed:
            number, entity = min(unclosed)
            raise error_at(self.path, number, f"'({entity}' opens a mention that the document does not close")
        clusters = clustered(self.entities.values(), singletons)
        genre = genre_of(self.name)
        return Document(self.name, self.part, genre, self.sentences[:-1], self.speakers[:-1], clusters)


def genre_of(name: str) -> str | None:
    """Returns the genre that a document's name begins with, None for another beginning."""
    return name[:2] if name[:2] in GENRES else None


def clustered(entities: Iterable[Iterable[Mention]], singletons: Singletons) -> list[list[Mention]]:
    """Merges entities that have a mention in common, directly or through other entities; drops singletons if asked."""
    cluster_of: dict[Mention, set[Mention]] = {}
    for mentions in entities:
        together = set(mentions)
        for mention in list(together):
            together |= cluster_of.get(mention, set())
        for mention in together:
            cluster_of[mention] = together
    clusters = {id(cluster): sorted(cluster) for cluster in cluster_of.values()}
    return sorted(cluster for cluster in clusters.values() if singletons == "keep" or len(cluster) > 1)
