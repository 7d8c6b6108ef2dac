"""Reads the XML of the all-words framework of word sense disambiguation (Raganato et al., 2017).

A dataset consists of two files: `NAME.data.xml` has the text with an id, a lemma and a part of speech per instance, and
`NAME.gold.key.txt` has one line per instance with its id and its right sense keys.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from elmo_jax.errors import UserError
from elmo_jax.text_files import error_at, open_text, read_lines, reading
from elmo_jax.words import split_words
from semcor import Instance, SenseCorpus, Sentence, known_senses, read_semcor
from wordnet import PARTS_OF_SPEECH, SenseIndex, lemma_and_part

_READ_BYTES = 1 << 16


def read_senses(path: Path, index: SenseIndex | None = None) -> SenseCorpus:
    """Reads SemCor in either of its forms: a folder of the original's files, or a `.data.xml` with its gold keys.

    Args:
      path: the folder of the original's files, a folder with one `.data.xml`, or the `.data.xml` itself.
      index: the senses that are kept; other keys are dropped. None keeps all.

    Raises:
      UserError: there is neither form, or a file is malformed.
    """
    if path.is_dir():
        found = sorted(path.glob("*.data.xml")) + sorted(path.glob("*.data.xml.xz"))
        if len(found) > 1:
            raise UserError(f"{path}: has {len(found)} .data.xml files; give the path of one of them")
        return read_framework(found[0], index) if found else read_semcor(path, index)
    return read_framework(path, index)


def read_framework(path: Path, index: SenseIndex | None = None) -> SenseCorpus:
    """Reads `NAME.data.xml`, and `NAME.gold.key.txt` in the same folder, of the framework of Raganato et al. (2017).

    Args:
      path: the file with the text, decompressed by its suffix; the gold keys may have the same suffix.
      index: the senses that are kept; other keys are dropped. None keeps all, as is needed for test sets.

    Raises:
      UserError: a file cannot be read or is malformed, or the two files do not match.
    """
    gold_path = path.with_name(path.name.replace(".data.xml", ".gold.key.txt"))
    if gold_path == path:
        raise UserError(f"{path}: expected a file NAME.data.xml of the all-words framework, or a folder of SemCor")
    gold = _read_gold(gold_path)
    used: set[str] = set()

    def sentences() -> Iterator[Sentence]:
        for words, found in _parse(path):
            instances = []
            for line, identifier, lemma, part, start, end in found:
                if identifier not in gold:
                    raise error_at(path, line, f"the instance {identifier!r} has no keys in {gold_path}")
                if identifier in used:
                    raise error_at(path, line, f"the instance {identifier!r} occurs twice")
                used.add(identifier)
                instances.append(Instance(start, end, lemma, part, gold[identifier]))
            yield Sentence(tuple(words), tuple(instances))

    corpus = known_senses(sentences(), index)
    missing = next((identifier for identifier in gold if identifier not in used), None)
    if missing is not None:
        raise UserError(f"{gold_path}: has keys of {missing!r}, which is not an instance of {path}")
    return corpus


def _read_gold(path: Path) -> dict[str, tuple[str, ...]]:
    gold: dict[str, tuple[str, ...]] = {}
    for line in read_lines(path):
        identifier, *keys = line.text.split() or [""]
        if not identifier:
            continue
        if not keys:
            raise error_at(path, line.number, f"expected the sense keys of {identifier!r}")
        for key in keys:
            try:
                lemma_and_part(key)
            except ValueError as error:
                raise error_at(path, line.number, str(error)) from None
        if identifier in gold:
            raise error_at(path, line.number, f"{identifier!r} occurs twice")
        gold[identifier] = tuple(keys)
    return gold


class _Found(NamedTuple):
    """An instance and its line in the file."""

    line: int
    identifier: str
    lemma: str
    part: str
    start: int
    end: int


_Parsed = tuple[list[str], list[_Found]]  # the words of a sentence and its instances


class _Handler:
    """Collects sentences from the events of an XML parser."""

    def __init__(self, path: Path, parser: expat.XMLParserType) -> None:
        self._path, self._parser = path, parser
        self._words: list[str] = []
        self._instances: list[_Found] = []
        self._attributes: dict[str, str] = {}
        self._text: list[str] | None = None  # the text of the open word
        self.finished: list[_Parsed] = []

    def error(self, message: str) -> UserError:
        return error_at(self._path, self._parser.CurrentLineNumber, message)

    def doctype(self, *_: object) -> None:
        # A document type can declare entities, which can make a small file arbitrarily large or read other files.
        raise self.error("document type declarations are not allowed; the framework's files have none")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if self._text is not None:
            raise self.error(f"<{name}> inside a word")
        if name == "sentence":
            self._words, self._instances = [], []
        elif name in ("wf", "instance"):
            self._attributes, self._text = attributes, []
        elif name not in ("corpus", "text"):
            raise self.error(f"expected corpus, text, sentence, wf or instance, found <{name}>")

    def characters(self, data: str) -> None:
        if self._text is not None:
            self._text.append(data)

    def end(self, name: str) -> None:
        if name == "sentence" and self._words:
            self.finished.append((self._words, self._instances))
        elif name in ("wf", "instance"):
            words, start = split_words("".join(self._text or []).replace("\n", " ")), len(self._words)
            self._text = None
            if not words:
                raise self.error(f"<{name}> without a word")
            self._words += words
            if name == "instance":
                self._instances.append(self._instance(start))

    def _instance(self, start: int) -> _Found:
        missing = [name for name in ("id", "lemma", "pos") if not self._attributes.get(name)]
        if missing:
            raise self.error(f"<instance> without {missing[0]}")
        lemma, part = self._attributes["lemma"].lower().replace(" ", "_"), self._attributes["pos"]
        if part not in PARTS_OF_SPEECH:
            raise self.error(f"expected an instance's pos to be one of {', '.join(PARTS_OF_SPEECH)}, found {part!r}")
        return _Found(self._parser.CurrentLineNumber, self._attributes["id"], lemma, part, start, len(self._words))


def _parse(path: Path) -> Iterator[_Parsed]:
    parser = expat.ParserCreate()
    handler = _Handler(path, parser)
    parser.StartDoctypeDeclHandler = handler.doctype
    parser.StartElementHandler = handler.start
    parser.CharacterDataHandler = handler.characters
    parser.EndElementHandler = handler.end
    with reading(path), open_text(path) as file:
        while True:
            data = file.read(_READ_BYTES)
            try:
                parser.Parse(data, not data)
            except expat.ExpatError as error:
                raise error_at(path, error.lineno, f"not XML ({expat.ErrorString(error.code)})") from None
            yield from handler.finished
            handler.finished.clear()
            if not data:
                return
