"""Reads documents with coreference in the columns of CoNLL-2012 and in the JSON lines of e2e-coref."""

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from elmo_jax.tasks.formats.lines import read_json, rows_of
from elmo_jax.text_files import Line, error_at, read_lines
from elmo_jax.words import is_blank

GENRES = ("bc", "bn", "mz", "nw", "pt", "tc", "wb")  # the first letters of the names of CoNLL-2012's documents

Mention = tuple[int, int]  # the first and the last word, counted from 0 over the document
Singletons = Literal["keep", "drop"]  # what happens to clusters of one mention, which OntoNotes does not have

NO_SPEAKER = "-"
_BEGIN = re.compile(r"#begin document \((.*)\); part ([0-9]{1,9})\s*")
_REFERENCE = re.compile(r"(\()?([0-9]+)(\))?")
_KEY = re.compile(r"(.+)_([0-9]+)")  # of e2e-coref: the name of the document and the number of its part
_SLASHED = {"/.": ".", "/?": "?"}  # the spellings of these words in some transcripts of CoNLL-2012


@dataclasses.dataclass(frozen=True)
class Document:
    """A part of a document, which is annotated independently."""

    name: str
    part: str  # the number of the part, spelled as in the file, since the official scorer compares the spellings
    genre: str | None  # the first two letters of the name if they are one of `GENRES`, else None
    sentences: list[list[str]]
    speakers: list[list[str]]  # of each word
    clusters: list[list[Mention]]  # in the order of the text, also within a cluster; no mention is in two
    key: str = ""  # `doc_key` of e2e-coref

    @property
    def id(self) -> str:
        """What names the part in a file; empty for a document without a name."""
        return self.key or (f"({self.name}); part {self.part}" if self.name else "")


def read(path: Path, singletons: Singletons = "keep") -> list[Document]:
    """Reads a file of documents, each between `#begin document (name); part n` and `#end document`.

    The last column has the coreference: `-` or nothing, or `(12`, `12)` and `(12)` with `|` between them. Mentions of
    one entity may be nested: `12)` closes the last one that was opened.
    """
    documents: list[Document] = []
    header: tuple[str, str] | None = None  # the name and the part of the document that is being read
    lines: list[Line] = []
    line = Line(0, "")
    for line in read_lines(path):
        if line.text.startswith("#begin document"):
            match = _BEGIN.fullmatch(line.text)
            if not match or header:
                expected = "#end document" if header else "'#begin document (name); part 0'"
                raise error_at(path, line.number, f"expected {expected}, found {line.text!r}")
            header, lines = (match[1], match[2]), []
        elif line.text.startswith("#end document"):
            if not header:
                raise error_at(path, line.number, "#end document without a #begin document before it")
            documents.append(_document(path, *header, lines, singletons))
            header = None
        elif header:
            lines.append(line)
        elif not is_blank(line.text):
            raise error_at(path, line.number, f"expected '#begin document (name); part 0', found {line.text!r}")
    if header:
        _document(path, *header, lines, singletons)  # what is wrong with its lines comes first
        raise error_at(path, line.number, f"the file ends inside the document {header[0]!r}, without #end document")
    return documents


def _document(path: Path, name: str, part: str, lines: Sequence[Line], singletons: Singletons) -> Document:
    sentences: list[list[list[str]]] = []  # the columns of each word
    opened: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)  # the first word and the line, by entity
    entities: defaultdict[str, list[Mention]] = defaultdict(list)
    filled = [line for line in lines if not is_blank(line.text)]
    for is_empty, group in itertools.groupby(lines, lambda line: is_blank(line.text)):
        sentences += [] if is_empty else [rows_of(path, list(group), 12)]
    for position, (line, row) in enumerate(zip(filled, itertools.chain(*sentences), strict=True)):
        for reference in row[-1].split("|") if row[-1] not in ("-", "") else []:
            match = _REFERENCE.fullmatch(reference)
            if not match or not (match[1] or match[3]):
                raise error_at(path, line.number, f"expected -, (12, 12) or (12) as coreference, found {reference!r}")
            opens, entity, closes = match.groups()
            if opens:
                opened[entity].append((position, line.number))
            if closes:
                if not opened[entity]:
                    raise error_at(path, line.number, f"'{entity})' closes a mention that was not opened")
                entities[entity].append((opened[entity].pop()[0], position))
    if unclosed := [(number, entity) for entity, mentions in opened.items() for _, number in mentions]:
        number, entity = min(unclosed)
        raise error_at(path, number, f"'({entity}' opens a mention that the document does not close")
    tokens = [[_SLASHED.get(row[3], row[3]) for row in rows] for rows in sentences]
    speakers = [[row[9] for row in rows] for rows in sentences]
    return Document(name, part, _genre(name), tokens, speakers, clustered(entities.values(), singletons))


def _genre(name: str) -> str | None:
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


def read_json_lines(path: Path, singletons: Singletons = "keep", annotated: bool = True) -> list[Document]:
    """Reads one document per line: an object with `doc_key`, `sentences`, `clusters` and, if known, `speakers`.

    Only one that need not be `annotated` may lack `clusters`.
    """
    return [_from_json(path, line, singletons, annotated) for line in read_lines(path) if not is_blank(line.text)]


def _from_json(path: Path, line: Line, singletons: Singletons, annotated: bool) -> Document:
    value = read_json(path, line.text, line.number)
    sentences = value.get("sentences") if isinstance(value, dict) else None
    if not _nested(sentences, 2, str) or not sentences or not all(sentences):
        raise error_at(path, line.number, "expected an object with 'sentences', lists of words, as e2e-coref has it")
    if wrong := [word for word in itertools.chain(*sentences) if is_blank(word) or re.search(r"[ \t\r\n]", word)]:
        problem = f"the word {wrong[0]!r}: expected words without spaces, as in CoNLL-2012"
        raise error_at(path, line.number, f"{problem}; leave it out of 'sentences' and of the numbers in 'clusters'")
    speakers = value.get("speakers") or [[NO_SPEAKER] * len(words) for words in sentences]
    if not _nested(speakers, 2, str) or list(map(len, speakers)) != list(map(len, sentences)):
        raise error_at(path, line.number, "'speakers': expected one for every word of 'sentences'")
    clusters, words = value.get("clusters", None if annotated else []), sum(map(len, sentences))
    if not _nested(clusters, 3, int) or not all(len(m) == 2 and 0 <= m[0] <= m[1] < words for c in clusters for m in c):
        expected = f"expected lists of [first, last] word, from 0 to {words - 1}"
        raise error_at(path, line.number, f"'clusters': {expected}")
    key = str(value.get("doc_key", ""))
    match = _KEY.fullmatch(key)
    # The part is spelled as in CoNLL-2012, whose official scorer compares the spellings.
    name, part = (match[1], f"{int(match[2]):03}") if match else (key, "0")
    mentions = [[(first, last) for first, last in cluster] for cluster in clusters]
    return Document(name, part, _genre(name), sentences, speakers, clustered(mentions, singletons), key)


def _nested(value: Any, depth: int, kind: type) -> bool:
    if depth == 0:
        return type(value) is kind
    return isinstance(value, list) and all(_nested(item, depth - 1, kind) for item in value)
