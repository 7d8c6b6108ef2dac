"""Chooses what is held out, from summaries of the chunks of a text.

A unit is a part of the text that is held out, or trained on, as a whole: a document where the starts of documents are
marked, otherwise a run of `SENTENCES_PER_UNIT` sentences, or one sentence of a text that has no more than that. The
number of a unit decides, so that a chunk can be divided without the others, once the units before it are counted.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from elmo_jax.data.prepare.text import Key

SENTENCES_PER_UNIT = 100


class Boundaries(NamedTuple):
    """The sentences of a chunk, in relation to the documents that begin in it."""

    sentences: int  # all
    begun: int  # the documents whose first sentence is here
    continues: bool  # whether there is a first sentence, and the pieces of the chunk begin no document with it
    ends_with_start: bool  # whether a document begins after the last sentence; its sentences are in later chunks

    @classmethod
    def of(cls, starts: np.ndarray, sentences: int) -> "Boundaries":
        """Summarizes a chunk of `sentences` sentences, of which `starts` `[documents]`, ascending, begin documents."""
        begun = int(np.count_nonzero(starts < sentences))
        return cls(sentences, begun, sentences > 0 and 0 not in starts, begun < len(starts))


class Planned(NamedTuple):
    """A chunk, and the rule by which its sentences are held out."""

    key: Key
    first: int  # the number of the document that the first sentence continues, or before the one that it begins
    begins: bool  # whether the first sentence begins a document that the chunk before has announced
    offset: int  # the sentences before the chunk
    size: int  # the sentences per unit; 0 for documents
    units: int  # the number of units of the text
    fraction: float  # the fraction of the units to hold out

    @classmethod
    def of_json(cls, value: Any) -> "Planned":
        """Returns the chunk that was written as JSON."""
        return cls(tuple(value[0]), *value[1:])

    def divide(self, starts: np.ndarray, sentences: int) -> tuple[np.ndarray, np.ndarray]:
        """Divides a chunk.

        Args:
          starts: int `[documents]`, the sentences that begin documents, ascending.
          sentences: the number of sentences.

        Returns:
          Which sentences are held out, and which of them begin documents: bool `[sentences]`.
        """
        begin = np.zeros(sentences, bool)
        begin[starts[starts < sentences]] = True
        begin[:1] |= self.begins
        if self.size:
            numbers = (self.offset + np.arange(sentences)) // self.size
        else:
            numbers = self.first + np.cumsum(begin)
        return _choose_heldout(numbers, self.units, self.fraction), begin


def _choose_heldout(numbers: np.ndarray, units: int, fraction: float) -> np.ndarray:
    """Returns which of the units with these numbers, from 0, are held out, as `PrepareOptions` describes."""
    # 3 * 0.1 > 0.3 in floating point
    up, down = Fraction(str(fraction)).limit_denominator(10**6).as_integer_ratio()
    if fraction and units > 1 and units * up < down:  # the fraction is less than one unit
        return numbers == units - 1
    return (numbers + 1) * up // down > numbers * up // down


def divide(
    chunks: Sequence[tuple[Key, Boundaries]], has_documents: bool, divisible: bool, fraction: float
) -> list[Planned]:
    """Divides a text into units, of which some are held out.

    Args:
      chunks: the chunks of the text.
      has_documents: whether the units are documents.
      divisible: whether a text of one document is divided further; otherwise nothing could be held out of a file
        without blank lines.
      fraction: the fraction of the units to hold out.
    """
    documents, offset, reduced = 0, 0, True
    before = []
    for key, chunk in chunks:
        begins = reduced and chunk.continues
        before.append((key, documents - 1, begins, offset))
        documents += begins + chunk.begun
        offset += chunk.sentences
        reduced = chunk.ends_with_start or (reduced and not chunk.sentences)
    size, units = 0, documents
    if not has_documents or (documents == 1 and divisible):
        size = SENTENCES_PER_UNIT if offset > SENTENCES_PER_UNIT else 1
        units = -(-offset // size)
    return [Planned(*chunk, size, units, fraction) for chunk in before]
