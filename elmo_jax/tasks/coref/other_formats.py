"""Reads documents with coreference in the JSON lines of e2e-coref and in the CoNLL-U of CorefUD."""

import re
from pathlib import Path
from typing import Any

from elmo_jax.tasks.core.task import report
from elmo_jax.tasks.coref.reader import Document, Reading, Singletons, clustered, genre_of
from elmo_jax.tasks.formats.lines import read_json
from elmo_jax.text_files import Line, error_at, read_lines
from elmo_jax.words import is_blank

NO_SPEAKER = "-"
_KEY = re.compile(r"(.+)_([0-9]+)")  # of e2e-coref: the name of the document and the number of its part
_BRACKET = re.compile(r"\((?P<opened>[^()]+)(?P<single>\))?|(?P<closed>[^()]+)\)")
_PART = re.compile(r"(.+)\[([0-9]+)/([0-9]+)\]")  # of a mention that is not continuous


def read_json_lines(path: Path, singletons: Singletons = "keep") -> list[Document]:
    """Reads one document per line: an object with `doc_key`, `sentences`, `clusters` and, if known, `speakers`.

    Raises:
      UserError: a line is not such an object, or a mention is not in the document.
    """
    return [_from_json(path, line, singletons) for line in read_lines(path) if not is_blank(line.text)]


def _from_json(path: Path, line: Line, singletons: Singletons) -> Document:
    value = read_json(path, line.text, line.number)
    sentences = value.get("sentences") if isinstance(value, dict) else None
    if not _nested(sentences, 2, str) or not sentences or not all(sentences):
        raise error_at(path, line.number, "expected an object with 'sentences', lists of words, as e2e-coref has it")
    speakers = value.get("speakers") or [[NO_SPEAKER] * len(words) for words in sentences]
    if not _nested(speakers, 2, str) or list(map(len, speakers)) != list(map(len, sentences)):
        raise error_at(path, line.number, "'speakers': expected one for every word of 'sentences'")
    clusters, words = value.get("clusters", []), sum(map(len, sentences))
    if not _nested(clusters, 3, int) or not all(len(m) == 2 and 0 <= m[0] <= m[1] < words for c in clusters for m in c):
        expected = f"expected lists of [first, last] word, from 0 to {words - 1}"
        raise error_at(path, line.number, f"'clusters': {expected}")
    match = _KEY.fullmatch(str(value.get("doc_key", "")))
    name, part = match.groups() if match else (str(value.get("doc_key", "")), "0")
    mentions = [[(first, last) for first, last in cluster] for cluster in clusters]
    return Document(name, part, genre_of(name), sentences, speakers, clustered(mentions, singletons))


def _nested(value: Any, depth: int, kind: type) -> bool:
    """Returns whether a value is lists in lists, `depth` of them, of items of one type."""
    if depth == 0:
        return type(value) is kind
    return isinstance(value, list) and all(_nested(item, depth - 1, kind) for item in value)


def read_corefud(path: Path, singletons: Singletons = "keep") -> list[Document]:
    """Reads CoNLL-U with `Entity=…` in its last column (https://ufal.mff.cuni.cz/corefud).

    Words are the syntactic ones. A mention that is not continuous reaches from its first to its last word, and those
    of empty nodes alone are left out; a line on stderr reports their numbers. The speaker of a sentence is the one of
    `# speaker = …`.

    Raises:
      UserError: a line has not ten columns, or a mention is not opened or not closed.
    """
    documents: list[Document] = []
    reading = _Corefud(path, path.name.partition(".")[0])
    discontinuous = empty = 0
    for line in [*read_lines(path), Line(0, "# newdoc")]:
        if line.text.startswith("# newdoc"):
            if reading.words:
                documents.append(reading.finish(singletons))
            discontinuous, empty = discontinuous + reading.discontinuous, empty + reading.empty
            name = line.text.partition("=")[2].strip() or f"{path.name.partition('.')[0]}_{len(documents)}"
            reading = _Corefud(path, name, reading.field)
        elif line.text.startswith("#"):
            reading.comment(*map(str.strip, line.text[1:].partition("=")[::2]))
        elif is_blank(line.text):
            reading.end_sentence()
        else:
            reading.add(line)
    report(
        path,
        {
            "mentions that are not continuous, read from their first to their last word": discontinuous,
            "mentions of empty nodes left out": empty,
        },
    )
    return documents


class _Corefud(Reading):
    """A document of CorefUD that is being read."""

    def __init__(self, path: Path, name: str, field: int = 0) -> None:
        super().__init__(path, name, "0")
        self.field = field  # the place of the entity in `Entity=(…-…-…`
        self.speaker = NO_SPEAKER
        self.discontinuous = self.empty = 0
        self.starts: dict[str, int] = {}  # the first word of a mention that is not continuous, by entity

    def comment(self, key: str, value: str) -> None:
        """Reads a comment."""
        if key == "global.Entity":
            names = value.split("-")
            self.field = next((names.index(name) for name in ("eid", "GRP") if name in names), 0)
        elif key == "speaker":
            self.speaker = value or NO_SPEAKER

    def add(self, line: Line) -> None:
        """Adds a word, or the mentions of an empty node."""
        cells = line.text.split("\t")
        if len(cells) != 10:
            raise error_at(self.path, line.number, f"expected 10 columns, as in CoNLL-U, found {len(cells)}")
        if "-" in cells[0]:  # the spelling of several words
            return
        is_word = "." not in cells[0]
        entity = next((part[7:] for part in cells[9].split("|") if part.startswith("Entity=")), "")
        last = self.words if is_word else self.words - 1
        for match in _BRACKET.finditer(entity):
            if match["opened"]:
                names = match["opened"].split("-")
                if self.field >= len(names):
                    raise error_at(self.path, line.number, f"Entity={entity}: has no entity where global.Entity says")
                self.opens(names[self.field], line)
            if match["single"] or match["closed"]:
                self._close(match["closed"] or names[self.field], last, line)
        if is_word:
            self.add_word(cells[1], self.speaker)

    def _close(self, name: str, last: int, line: Line) -> None:
        first = self.closes(name, line)
        part = _PART.fullmatch(name)
        if part:
            entity, number, of = part.groups()
            self.starts.setdefault(entity, first)
            if number != of:
                return
            self.discontinuous += 1
            name, first = entity, self.starts.pop(entity)
        if last < first:
            self.empty += 1
        else:
            self.entities[name].append((first, last))

    def end_sentence(self) -> None:
        """Ends the sentence if one has begun, and forgets its speaker."""
        super().end_sentence()
        self.speaker = NO_SPEAKER
