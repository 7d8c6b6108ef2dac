"""Reads text with WordNet's senses from the files of SemCor.

An expression of several words, such as `primary_election`, is several words with one tag.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from elmo_jax.errors import UserError
from elmo_jax.text_files import Line, error_at, read_lines
from wordnet import SenseIndex, lemma_and_part

_LINE = re.compile(r"<(wf|punc)((?: [a-z]+=[^\s<>]*)*)>([^<>]*)</\1>")
_STRUCTURE = re.compile(r"</?(?:contextfile|context|p|s)(?: [^<>]*)?>")
# These are syntactic marks of WordNet's sources, such as (a) for adjectives before their noun, and not part of a sense
# key.
_SYNTACTIC_MARK = re.compile(r"\((?:a|p|ip)\)")


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
    """The words of a sentence, and its instances."""

    words: tuple[str, ...]
    instances: tuple[Instance, ...]


class SenseCorpus(NamedTuple):
    """The sentences of a corpus with senses."""

    sentences: list[Sentence]  # the sentences with at least one word, in the order of the files
    keys: int  # the number of sense keys in the files
    dropped: int  # the number of sense keys that were left out because they are not in the index of senses

    @property
    def instances(self) -> int:
        """The number of words and expressions with a sense."""
        return sum(len(sentence.instances) for sentence in self.sentences)

    @property
    def words(self) -> int:
        """The number of words."""
        return sum(len(sentence.words) for sentence in self.sentences)


def read_semcor(folder: Path, index: SenseIndex | None = None) -> SenseCorpus:
    """Reads the files of SemCor 3.0, the parts brown1, brown2 and brownv.

    The files look like XML but are not: attributes have no quotes, and `&` is not escaped.

    Args:
      folder: the folder with the parts, or one that contains it; each part has a folder `tagfiles`.
      index: the senses that are kept; other keys are dropped, such as those of senses that WordNet 3.0 no longer has
        (`wnsn=0`). None keeps all.

    Raises:
      UserError: there are no such files, or a line is malformed.
    """
    paths = sorted(path for path in folder.rglob("tagfiles/br-*") if path.is_file())
    if not paths:
        raise UserError(
            f"{folder}: expected the folders brown1, brown2 and brownv of SemCor, each with a folder tagfiles"
        )
    return known_senses((sentence for path in paths for sentence in _read_tagfile(path)), index)


def _read_tagfile(path: Path) -> Iterator[Sentence]:
    words: list[str] = []
    instances: list[Instance] = []
    for line in read_lines(path):
        text = line.text.strip()
        found = _LINE.fullmatch(text)
        if found is not None:
            start = len(words)
            words += [word for word in found[3].split("_") if word]
            attributes = dict(pair.split("=", 1) for pair in found[2].split())
            if "lexsn" in attributes and len(words) > start:
                instances.append(_tagged(path, line, attributes, start, len(words)))
        elif text and _STRUCTURE.fullmatch(text) is None:
            raise error_at(path, line.number, f"expected a line of SemCor, such as <wf cmd=…>word</wf>, found {text!r}")
        elif text == "</s>":
            if words:
                yield Sentence(tuple(words), tuple(instances))
            words, instances = [], []
    if words:
        raise UserError(f"{path}: the file ends inside a sentence")


def _tagged(path: Path, line: Line, attributes: dict[str, str], start: int, end: int) -> Instance:
    if "lemma" not in attributes:
        raise error_at(path, line.number, "a word with lexsn but without lemma has no sense key")
    lemma = attributes["lemma"].lower()
    keys = [_SYNTACTIC_MARK.sub("", f"{lemma}%{sense}") for sense in attributes["lexsn"].split(";")]
    try:
        parts = [lemma_and_part(key)[1] for key in keys]
    except ValueError as error:
        raise error_at(path, line.number, str(error)) from None
    return Instance(start, end, lemma, parts[0], tuple(dict.fromkeys(keys)))


def known_senses(sentences: Iterator[Sentence], index: SenseIndex | None) -> SenseCorpus:
    """Collects sentences without the keys that the index lacks, and without instances that have no other key."""
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
