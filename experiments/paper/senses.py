"""Reads text with WordNet's senses: SemCor, the all-words framework of Raganato et al. (2017), and `index.sense`.

A sense key is `lemma%type:file:number:head:head_number`. Its type is 1 for nouns, 2 for verbs, 3 for adjectives, 4 for
adverbs and 5 for adjective satellites, which are adjectives too. An expression of several words, such as
`primary_election`, is several words with one tag.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from elmo_jax.errors import UserError
from elmo_jax.text_files import error_at, open_text, read_lines, reading
from elmo_jax.words import split_words

PARTS_OF_SPEECH = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}
_KEY = re.compile(r"(.+)%([1-5]):\d\d:\d\d:.*:(?:\d\d)?")
_LINE = re.compile(r"<(wf|punc)((?: [a-z]+=[^\s<>]*)*)>([^<>]*)</\1>")
_STRUCTURE = re.compile(r"</?(?:contextfile|context|p|s)(?: [^<>]*)?>")
# Syntactic marks of WordNet's sources, such as (a) for adjectives before their noun, which are no part of a sense key.
_SYNTACTIC_MARK = re.compile(r"\((?:a|p|ip)\)")


def lemma_and_part(key: str) -> tuple[str, str]:
    """Splits a sense key into its lemma and its part of speech. Raises `UserError` if it is no sense key."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise UserError(f"expected a sense key such as play%1:04:00::, found {key!r}")
    return match[1], PARTS_OF_SPEECH[match[2]]


class SenseIndex:
    """The senses of each lemma and part of speech in WordNet's order, which is by frequency."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        """Keeps the number of each sense key, which is counted from 1 for each lemma and part of speech."""
        self._numbers = dict(numbers)
        self._senses: dict[tuple[str, str], list[str]] = {}
        for key in sorted(self._numbers, key=self._numbers.__getitem__):
            self._senses.setdefault(lemma_and_part(key), []).append(key)

    def __contains__(self, key: str) -> bool:
        return key in self._numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def senses(self, lemma: str, part: str) -> Sequence[str]:
        """Returns the keys of a lemma (in lower case, with `_` between words) and a part of speech."""
        return self._senses.get((lemma, part), [])

    def first(self, lemma: str, part: str) -> str | None:
        """Returns the key of the first and most frequent sense; None if WordNet does not have the lemma."""
        return next(iter(self.senses(lemma, part)), None)


def read_index(path: Path) -> SenseIndex:
    """Reads `index.sense`, whose lines have a sense key, a synset's offset, the sense's number and a count."""
    numbers: dict[str, int] = {}
    for line in read_lines(path):
        if not (columns := line.text.split()):
            continue
        key, is_key = columns[0], _KEY.fullmatch(columns[0])
        if len(columns) != 4 or not columns[2].isdecimal() or not is_key or key in numbers:
            expected = "expected another sense key, an offset, the sense's number and a count"
            raise error_at(path, line.number, f"{expected}, found {line.text!r}")
        numbers[key] = int(columns[2])
    return SenseIndex(numbers)


@dataclasses.dataclass(frozen=True)
class Instance:
    """A word, or an expression of several words, with its senses."""

    start: int  # the position of its first word in the sentence
    end: int  # the position after its last word
    lemma: str  # the lemma in lower case, with `_` between the words of an expression
    part: str  # the part of speech
    keys: tuple[str, ...]  # the right sense keys


@dataclasses.dataclass(frozen=True)
class Sentence:
    words: tuple[str, ...]
    instances: tuple[Instance, ...]


class SenseCorpus(NamedTuple):
    sentences: list[Sentence]  # the sentences with at least one word, in the order of the files
    keys: int  # the number of sense keys in the files
    dropped: int  # the number of sense keys that were left out because they are not in the index of senses

    @property
    def instances(self) -> int:
        return sum(len(sentence.instances) for sentence in self.sentences)


def read_senses(path: Path, index: SenseIndex | None = None) -> SenseCorpus:
    """Reads the folder of SemCor 3.0 (brown1, brown2, brownv), or a `.data.xml` of the framework or its folder.

    Sense keys outside the index are dropped, and instances that have no other key; None keeps all, as for test sets.
    """
    texts = sorted(path.glob("*.data.xml*")) if path.is_dir() else [path]
    if len(texts) > 1:
        raise UserError(f"{path}: has {len(texts)} .data.xml files; give the path of one of them")
    if texts:
        return _known_senses(_read_framework(texts[0]), index)
    files = sorted(file for file in path.rglob("tagfiles/br-*") if file.is_file())
    if not files:
        raise UserError(
            f"{path}: expected the folders brown1, brown2 and brownv of SemCor, each with a folder tagfiles, or a"
            " .data.xml of the all-words framework"
        )
    return _known_senses((sentence for file in files for sentence in _read_tagfile(file)), index)


def _known_senses(sentences: Iterable[Sentence], index: SenseIndex | None) -> SenseCorpus:
    kept, keys, dropped = [], 0, 0
    for sentence in sentences:
        instances = []
        for instance in sentence.instances:
            known = tuple(key for key in instance.keys if index is None or key in index)
            keys += len(instance.keys)
            dropped += len(instance.keys) - len(known)
            if known:
                instances.append(dataclasses.replace(instance, keys=known))
        kept.append(Sentence(sentence.words, tuple(instances)))
    return SenseCorpus(kept, keys, dropped)


def _read_tagfile(path: Path) -> Iterator[Sentence]:
    """Reads a file of SemCor, which looks like XML but is not: attributes have no quotes, and `&` is not escaped."""
    words: list[str] = []
    instances: list[Instance] = []
    for line in read_lines(path):
        text = line.text.strip()
        if match := _LINE.fullmatch(text):
            start = len(words)
            words += [word for word in match[3].split("_") if word]
            attributes = dict(pair.split("=", 1) for pair in match[2].split())
            if "lexsn" in attributes and len(words) > start:
                try:
                    lemma = attributes["lemma"].lower()
                    keys = [_SYNTACTIC_MARK.sub("", f"{lemma}%{sense}") for sense in attributes["lexsn"].split(";")]
                    parts = [lemma_and_part(key)[1] for key in keys]
                except (KeyError, UserError) as error:
                    raise error_at(path, line.number, f"no sense key: {error}") from None
                instances.append(Instance(start, len(words), lemma, parts[0], tuple(dict.fromkeys(keys))))
        elif text and _STRUCTURE.fullmatch(text) is None:
            raise error_at(path, line.number, f"expected a line of SemCor, such as <wf cmd=…>word</wf>, found {text!r}")
        elif text == "</s>":
            if words:
                yield Sentence(tuple(words), tuple(instances))
            words, instances = [], []
    if words:
        raise UserError(f"{path}: the file ends inside a sentence")


def _read_framework(path: Path) -> Iterator[Sentence]:
    """Reads `NAME.data.xml`, and the right sense keys of its instances in `NAME.gold.key.txt` of the same folder."""
    gold_path = path.with_name(path.name.replace(".data.xml", ".gold.key.txt"))
    if gold_path == path:
        raise UserError(f"{path}: expected a file NAME.data.xml of the all-words framework, or a folder of SemCor")
    gold: dict[str, tuple[str, ...]] = {}
    for line in read_lines(gold_path):
        identifier, *keys = line.text.split() or [""]
        if identifier in gold or (identifier and not (keys and all(map(_KEY.fullmatch, keys)))):
            raise error_at(gold_path, line.number, f"expected another instance and its sense keys, found {line.text!r}")
        gold |= {identifier: tuple(keys)} if identifier else {}
    with reading(path), open_text(path) as file:
        try:
            for _, element in ElementTree.iterparse(file):
                if element.tag == "sentence":
                    if len(element):
                        yield _sentence(path, element, gold)
                    element.clear()
        except ElementTree.ParseError as error:
            raise UserError(f"{path}: not XML ({error})") from None
    if gold:
        raise UserError(f"{gold_path}: has keys of {next(iter(gold))!r}, which is not an instance of {path}")


def _sentence(path: Path, element: ElementTree.Element, gold: dict[str, tuple[str, ...]]) -> Sentence:
    words: list[str] = []
    instances = []
    for token in element:
        start = len(words)
        words += split_words((token.text or "").replace("\n", " "))
        name, lemma, part = (token.get(key, "") for key in ("id", "lemma", "pos"))
        is_instance = token.tag == "instance"
        is_right = token.tag == "wf" or (is_instance and lemma and part in PARTS_OF_SPEECH.values() and name in gold)
        if len(token) or len(words) == start or not is_right:
            text = ElementTree.tostring(token, "unicode").strip()
            raise UserError(
                f"{path}: expected a word, <wf …>word</wf> or <instance id= lemma= pos=>word</instance> with keys in"
                f" the gold file, each once; found {text}"
            )
        if is_instance:
            instances.append(Instance(start, len(words), lemma.lower().replace(" ", "_"), part, gold.pop(name)))
    return Sentence(tuple(words), tuple(instances))
