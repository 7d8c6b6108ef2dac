"""Chooses what is held out, from summaries of the chunks of a text.

A unit is a part of the text that is held out, or trained on, as a whole (`Units`). Its number among the units of its
source decides, so that a chunk can be divided without the others, once the units before it are counted.
"""

import collections
import enum
import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from elmo_jax.data.prepare.text import Format, Key

SENTENCES_PER_UNIT = 100
_ALL = 1 << 62  # sentences; more than any source has


class Units(enum.Enum):
    """The kinds of units that a source can have."""

    DOCUMENTS = enum.auto()  # documents, whose starts are marked by the pieces of the source
    RUNS = enum.auto()  # runs of `SENTENCES_PER_UNIT` consecutive sentences, or of one in a source that has no more
    WHOLE = enum.auto()  # the whole source, which is one document among other sources


def units_of(format: Format, has_documents: bool, is_one_of_several: bool) -> Units:
    """Returns the kind of units of a source."""
    if has_documents:
        return Units.DOCUMENTS
    # A file of running text that is named with others is one document, as it would be in a folder.
    return Units.WHOLE if is_one_of_several and format is Format.RAW else Units.RUNS


class Boundaries(NamedTuple):
    """The sentences of a chunk, in relation to the documents that begin in it."""

    sentences: int  # all
    head: int  # those before the first start of a document, which belong to a document that began in an earlier chunk
    begins: bool  # whether a document begins here, which may have its first sentence in a later chunk
    begun: int  # the documents whose first sentence is here
    tail: int  # the sentences of the document that began last


def boundaries(starts: np.ndarray, sentences: int) -> Boundaries:
    """Summarizes a chunk of `sentences` sentences, of which `starts` `[documents]`, ascending, begin documents."""
    if not len(starts):
        return Boundaries(sentences, sentences, False, 0, 0)
    begun = int(np.count_nonzero(starts < sentences))
    return Boundaries(sentences, int(starts[0]), True, begun, sentences - int(starts[-1]))


class Rule(NamedTuple):
    """The rule by which the sentences of a chunk are held out; its numbers are those of the chunk's source."""

    first: int  # the number of the unit before the first document that begins in the chunk, or that of run 0
    offset: int  # the sentences before the chunk
    size: int  # the sentences per unit; 0 for documents
    units: int  # the number of units
    fraction: float  # the fraction of the units to hold out

    def heldout(self, starts: np.ndarray, sentences: int) -> np.ndarray:
        """Returns which sentences are held out, bool `[sentences]`; `starts` are the sentences that begin documents."""
        numbers = np.arange(sentences)
        if self.size:
            return choose_heldout(self.first + (self.offset + numbers) // self.size, self.units, self.fraction)
        return choose_heldout(self.first + np.searchsorted(starts, numbers, "right"), self.units, self.fraction)


class Planned(NamedTuple):
    """A chunk, and what is held out of it."""

    key: Key
    rule: Rule

    @classmethod
    def of_json(cls, value: Any) -> "Planned":
        """Returns the chunk that was written as JSON."""
        return cls(tuple(value[0]), Rule(*value[1]))


def choose_heldout(numbers: np.ndarray, units: int, fraction: float) -> np.ndarray:
    """Returns which of some units of a source are held out, as `PrepareOptions` describes: bool `[n]`.

    Args:
      numbers: int64 `[n]`, the numbers of these units, from 0.
      units: the number of units of the source.
      fraction: the fraction of the units to hold out.
    """
    up, down = _exact(fraction).as_integer_ratio()
    if units * up < down and count_heldout(units, fraction):  # the fraction is less than one unit
        return numbers == units - 1
    return (numbers + 1) * up // down > numbers * up // down


def count_heldout(units: int, fraction: float) -> int:
    """Returns how many units are held out of `units` units."""
    due = int(units * _exact(fraction))
    return 1 if fraction and units > 1 and not due else due


def _exact(fraction: float) -> Fraction:
    return Fraction(str(fraction)).limit_denominator(10**6)  # 3 * 0.1 > 0.3 in floating point


class Division(NamedTuple):
    """The division of a source into units."""

    rules: list[Rule]  # per chunk
    heldout: int  # the number of units that are held out
    documents: tuple[int, int] | None  # the documents to train on, and held out; None if the source does not mark them


def divide(
    chunks: Sequence[Sequence[Boundaries]], kinds: Sequence[Units], names: Sequence[str], fractions: Sequence[float]
) -> list[Division]:
    """Divides every source into units, of which some are held out.

    Args:
      chunks: the chunks of each source.
      kinds: the kind of units of each source.
      names: the name of each source; the sources of one name and fraction that are one document each count together.
      fractions: the fraction of the units of each source to hold out.
    """
    divisions, documents_of = [], collections.Counter[tuple[str, float]]()
    is_document = [
        kind is Units.WHOLE and any(chunk.sentences for chunk in summaries)
        for kind, summaries in zip(kinds, chunks, strict=True)
    ]
    groups = list(zip(names, fractions, strict=True))
    total = collections.Counter(group for group, counts in zip(groups, is_document, strict=True) if counts)
    for summaries, kind, group, counts in zip(chunks, kinds, groups, is_document, strict=True):
        if kind is not Units.WHOLE:
            divisions.append(_divide(summaries, kind, group[1]))
            continue
        rule = Rule(documents_of[group], 0, _ALL, total[group], group[1])
        held = int(counts and rule.heldout(np.zeros(0), 1)[0])
        documents_of[group] += counts
        divisions.append(Division([rule] * len(summaries), held, (counts - held, held)))
    return divisions


def _divide(chunks: Sequence[Boundaries], kind: Units, fraction: float) -> Division:
    firsts, units = _documents(chunks)
    sentences = sum(chunk.sentences for chunk in chunks)
    size = 0
    # A source that turns out to be a single unit is divided: a document into runs of sentences, and a run into
    # sentences; otherwise nothing could be held out of a file without blank lines or a short text.
    if kind is Units.RUNS or units == 1:
        size = SENTENCES_PER_UNIT if sentences > SENTENCES_PER_UNIT else 1
        firsts, units = [0] * len(chunks), -(-sentences // size)
    before = itertools.accumulate((chunk.sentences for chunk in chunks), initial=0)
    rules = [Rule(first, offset, size, units, fraction) for first, offset in zip(firsts, before, strict=False)]
    held = count_heldout(units, fraction)
    return Division(rules, held, None if size else (units - held, held))


def _documents(chunks: Sequence[Boundaries]) -> tuple[list[int], int]:
    """Returns `Rule.first` of each chunk, and the number of documents with sentences."""
    firsts, ended, unfinished = [], 0, 0  # the documents that ended, and the sentences of the one that may continue
    for chunk in chunks:
        continues = unfinished + chunk.head > 0
        firsts.append(ended - (not continues))
        if chunk.begins:
            ended, unfinished = ended + continues + chunk.begun - (chunk.tail > 0), chunk.tail
        else:
            unfinished += chunk.head
    return firsts, ended + (unfinished > 0)
