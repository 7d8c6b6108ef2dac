"""Reads the senses of WordNet: its file `index.sense` and the keys of senses.

A sense key is `lemma%type:file:number:head:head_number`. Its type is 1 for nouns, 2 for verbs, 3 for adjectives, 4 for
adverbs and 5 for adjective satellites, which are adjectives too.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from elmo_jax.errors import UserError
from elmo_jax.text_files import error_at, read_lines
from elmo_jax.words import is_blank

PartOfSpeech = Literal["NOUN", "VERB", "ADJ", "ADV"]
PARTS_OF_SPEECH: tuple[PartOfSpeech, ...] = get_args(PartOfSpeech)

_PART_OF_TYPE: dict[str, PartOfSpeech] = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}
_KEY = re.compile(r"(.+)%([1-5]):\d\d:\d\d:.*:(?:\d\d)?")


def lemma_and_part(key: str) -> tuple[str, PartOfSpeech]:
    """Splits a sense key into its lemma and its part of speech.

    Raises:
      ValueError: the text is not a sense key.
    """
    found = _KEY.fullmatch(key)
    if found is None:
        raise ValueError(f"expected a sense key such as play%1:04:00::, found {key!r}")
    return found[1], _PART_OF_TYPE[found[2]]


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
        senses = self.senses(lemma, part)
        return senses[0] if senses else None


def read_index(path: Path) -> SenseIndex:
    """Reads `index.sense` of WordNet, whose lines have a sense key, a synset's offset, the sense's number and a count.

    Args:
      path: the file, decompressed by its suffix.

    Raises:
      UserError: the file cannot be read, a line is malformed, or a key occurs twice.
    """
    numbers: dict[str, int] = {}
    for line in read_lines(path):
        if is_blank(line.text):
            continue
        columns = line.text.split()
        if len(columns) != 4 or not columns[2].isdecimal():
            expected = "expected a sense key, an offset, the sense's number and a count"
            raise error_at(path, line.number, f"{expected}, found {line.text!r}")
        if _KEY.fullmatch(columns[0]) is None:
            raise error_at(path, line.number, f"expected a sense key such as play%1:04:00::, found {columns[0]!r}")
        if columns[0] in numbers:
            raise error_at(path, line.number, f"the key {columns[0]} occurs twice")
        numbers[columns[0]] = int(columns[2])
    if not numbers:
        raise UserError(f"{path}: has no senses; expected index.sense of WordNet")
    return SenseIndex(numbers)
