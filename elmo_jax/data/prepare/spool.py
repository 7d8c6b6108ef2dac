"""Reads a text for the first time: numbers the words in the order of their first use, and spools the text to disk.

The final ids depend on the counts, and the counts on which documents are held out; both are known only at the end. So
the text is spooled, four bytes per word, in one file per chunk (`workers`), whose words have provisional ids. Memory
holds the distinct words and two numbers per unit, however long the text is.

A unit is a part of the text that is held out, or trained on, as a whole (`Units`).
"""

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from elmo_jax.characters import MARKS
from elmo_jax.data.prepare.options import PrepareOptions
from elmo_jax.data.prepare.pieces import Source, chunks
from elmo_jax.data.prepare.sources import size_of
from elmo_jax.data.prepare.text import LONG_SENTENCE, Chunk, Errors, Format, Piece, Tokenized, unspaced_error
from elmo_jax.data.prepare.workers import PIECE, read_piece, tokenize_all
from elmo_jax.distributed.cpu import available_cores
from elmo_jax.errors import UserError
from elmo_jax.runs.progress import Progress

SENTENCES_PER_UNIT = 100


class Units(enum.Enum):
    """The kinds of units that a source can have."""

    DOCUMENTS = enum.auto()  # documents, whose starts are marked by the pieces of the source
    RUNS = enum.auto()  # runs of `SENTENCES_PER_UNIT` consecutive sentences, or of one in a source that has no more
    WHOLE = enum.auto()  # the whole source, which is one document among other sources


class Spool:
    """A text in files of a folder: those of `tokenize_all`, the provisional ids of their words, and the lengths.

    Attributes:
      kinds: the kind of units of each source.
      names: the name of each source; empty if they have none.
      sentences: the number of sentences.
      words: the number of words.
      empty_lines: the total of `Tokenized.empty_lines`; `marks_dropped` and `replaced_lines` are totals too.
      unspaced_documents: the number of documents that were left out, since their words are not separated by spaces.
      long_sentences: the number of sentences of more than `LONG_SENTENCE` words.
      long_sentence_words: the number of words in these sentences.
      longest_sentence: the number of words of the longest sentence.
    """

    def __init__(self, folder: Path, ids: dict[str, int], kinds: Sequence[Units], names: Sequence[str] = ()) -> None:
        """Makes an empty spool.

        Args:
          folder: the folder for its files, which may have some of an earlier reading of the same text.
          ids: a dict from words to provisional ids, to which new words are added.
          kinds: the kind of units of each source.
          names: the name of each source; empty if they have none.
        """
        self._folder, self._types_path, self._lengths_path = folder, folder / "text.types", folder / "text.lengths"
        self._ids = ids
        self.kinds, self.names = list(kinds), list(names)
        self._units: list[list[np.ndarray]] = [[] for _ in kinds]  # for each source, the sentences in each of its units
        self._open = 0  # the number of sentences in the unit that may still grow
        self.sentences = self.words = 0
        self.empty_lines = self.marks_dropped = self.replaced_lines = self.unspaced_documents = 0
        self.long_sentences = self.long_sentence_words = self.longest_sentence = 0

    def read(self, chunks: Iterable[Chunk], workers: int, progress: Progress) -> None:
        """Tokenizes all chunks, in order, and writes them.

        Raises:
          UserError: words are not separated by spaces, in a text without documents or in most of the text; or there are
            bytes that are not UTF-8, with `Errors.STRICT`.
        """
        source = on_disk = 0
        read = left_out = 0  # bytes
        first: Piece | None = None  # that was left out
        with self._types_path.open("wb") as types_file, self._lengths_path.open("wb") as lengths_file:
            for chunk, found, was_there in tokenize_all(chunks, workers, self._folder):
                ids = self._ids
                provisional = [ids.setdefault(word, len(ids)) for word in found.types]
                # ndarray.tofile would not report a full disk.
                types_file.write(np.array(provisional, np.int32).tobytes())
                lengths_file.write(found.lengths.tobytes())
                if chunk.source != source:
                    self._close_source(source)
                    source, on_disk = chunk.source, 0
                self._count(found)
                self._add_units(chunk, found)
                read += sum(len(piece.data) for piece in chunk.pieces)
                unspaced = [chunk.pieces[index] for index in found.unspaced]
                left_out += sum(len(piece.data) for piece in unspaced)
                self.unspaced_documents += sum(piece.starts_document for piece in unspaced)
                if unspaced:
                    first = first or unspaced[0]
                    if self.kinds[chunk.source] is not Units.DOCUMENTS:
                        raise unspaced_error(unspaced[0])
                (progress.skip if was_there else progress.add)(len(found.ids), chunk.read - on_disk)
                on_disk = chunk.read
        self._close_source(source)
        if first is not None and 2 * left_out > read:
            raise unspaced_error(first)

    def _count(self, found: Tokenized) -> None:
        self.sentences += len(found.lengths)
        self.words += len(found.ids)
        self.empty_lines += found.empty_lines
        self.marks_dropped += found.marks_dropped
        self.replaced_lines += found.replaced_lines
        long = found.lengths[found.lengths > LONG_SENTENCE]
        self.long_sentences += len(long)
        self.long_sentence_words += int(long.sum())
        self.longest_sentence = max(self.longest_sentence, int(found.lengths.max(initial=0)))

    def _add_units(self, chunk: Chunk, found: Tokenized) -> None:
        total = len(found.lengths)
        match self.kinds[chunk.source]:
            case Units.DOCUMENTS:  # sentences before the first start belong to the open document
                before = np.concatenate([[0], np.cumsum(found.pieces)])  # sentences before each piece
                ends = before[np.flatnonzero([piece.starts_document for piece in chunk.pieces])]
            case Units.RUNS:
                ends = np.arange(SENTENCES_PER_UNIT - self._open, total + 1, SENTENCES_PER_UNIT)
            case Units.WHOLE:
                ends = np.zeros(0, np.int64)
        units = np.diff(np.concatenate([[0], ends, [total]]))
        units[0] += self._open
        self._open = int(units[-1])
        self._units[chunk.source].append(units[:-1][units[:-1] > 0])

    def _close_source(self, source: int) -> None:
        """Ends the unit that may still grow.

        A source that turns out to be a single unit is divided: a document into runs of sentences, and a run into
        sentences; otherwise nothing could be held out of a file without blank lines or a short text.
        """
        units = np.concatenate([*self._units[source], [self._open] if self._open else []]).astype(np.int64)
        self._open = 0
        if self.kinds[source] is not Units.WHOLE and len(units) == 1:
            self.kinds[source] = Units.RUNS
            size = SENTENCES_PER_UNIT if units[0] > SENTENCES_PER_UNIT else 1
            runs, rest = divmod(int(units[0]), size)
            units = np.array([size] * runs + [rest] * (rest > 0), np.int64)
        self._units[source] = [units]

    @property
    def units(self) -> np.ndarray:
        """The number of sentences of each unit, never zero: int64 `[units]`."""
        return np.concatenate([np.zeros(0, np.int64), *(units for part in self._units for units in part)])

    @property
    def sources(self) -> np.ndarray:
        """The index of the source of each unit, in ascending order: int64 `[units]`."""
        numbers = [sum(map(len, part)) for part in self._units]
        return np.repeat(np.arange(len(numbers)), numbers)

    def unit_words(self) -> np.ndarray:
        """Returns the number of words of each unit, computed from the files: int64 `[units]`."""
        if not self.sentences:
            return np.zeros(0, np.int64)
        lengths = np.memmap(self._lengths_path, np.int32, "r")
        return np.add.reduceat(lengths, np.cumsum(self.units) - self.units, dtype=np.int64)

    def parts(self, units: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Reads some units back, in order.

        Args:
          units: bool `[units]`, true for the units to read.

        Yields:
          Consecutive parts of the text: the provisional ids, int32 `[words]`, and the number of words of each sentence,
          int32 `[sentences]`.
        """
        wanted = np.repeat(units, self.units)  # [sentences]
        start = 0
        with self._types_path.open("rb") as types_file:
            for path in sorted(self._folder.glob(f"*{PIECE}")):
                found = read_piece(path)
                provisional = np.fromfile(types_file, np.int32, len(found.types))
                keep = wanted[start : start + len(found.lengths)]
                start += len(found.lengths)
                yield provisional[found.ids[np.repeat(keep, found.lengths)]], found.lengths[keep]

    @property
    def types(self) -> list[str]:
        """All distinct words; the index of a word is its provisional id."""
        return list(self._ids)


@dataclasses.dataclass(frozen=True)
class Part:
    """The text of one split, which consists of some units of a spool."""

    spool: Spool  # the text of all splits
    units: np.ndarray  # bool `[units]`, true for the units of this split

    def of_name(self, name: str) -> "Part":
        """Returns the text of the sources with this name."""
        return Part(self.spool, self.units & (np.array(self.spool.names) == name)[self.spool.sources])

    def read(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Reads the text in order; see `Spool.parts`."""
        return self.spool.parts(self.units)

    def counts(self, types: int) -> np.ndarray:
        """Returns the count of each word by provisional id: int64 `[types]`."""
        counts = np.zeros(types, np.int64)
        for ids, _ in self.read():
            counts += np.bincount(ids, minlength=types)
        return counts

    @property
    def sentences(self) -> int:
        """The number of sentences of this split."""
        return int(self.spool.units[self.units].sum())

    def of_sources(self) -> list[dict[str, int | None]]:
        """Returns the numbers of documents, sentences and words of each source that are in this part.

        The number of documents is None if the source does not mark them.
        """
        sources, sentences, words = self.spool.sources, self.spool.units, self.spool.unit_words()
        found: list[dict[str, int | None]] = []
        for number, kind in enumerate(self.spool.kinds):
            chosen = self.units & (sources == number)
            documents = None if kind is Units.RUNS else int(chosen.sum())
            numbers = {"sentences": int(sentences[chosen].sum()), "words": int(words[chosen].sum())}
            found.append({"documents": documents, **numbers})
        return found


def spool_text(
    folder: Path,
    text: Sequence[Source],
    heldout: Sequence[Source],
    options: PrepareOptions,
    names: Sequence[str] = (),
) -> dict[str, Part]:
    """Reads the whole text, and divides it into splits.

    Args:
      folder: the folder for the spool.
      text: the sources of the text, of which a fraction is held out.
      heldout: further sources, which are held out.
      options: the options of `prepare`.
      names: the name of each source, those of `text` first; empty if they have none.

    Returns:
      The parts `train` and `heldout` of one spool, whose sources are those of `text`, then those of `heldout`.

    Raises:
      UserError: as `Spool.read`; or nothing can be held out, since the text has one unit.
    """
    name_of = list(names) or [""] * (len(text) + len(heldout))
    of_text = name_of[: len(text)]
    kinds = [_units_of(source, of_text.count(name) > 1) for source, name in zip(text, of_text, strict=True)]
    kinds += [_units_of(source, True) for source in heldout]
    spool = Spool(folder, {mark: i for i, mark in enumerate(MARKS)}, kinds, names)
    with Progress("reading the text", "words", size_of([*text, *heldout]), options.progress) as bar:
        found = chunks([*text, *heldout], Errors(options.text.errors), options.text.language)
        spool.read(found, options.workers or available_cores(), bar)
    held = spool.sources >= len(text)
    # Units are held out of each source separately, so that a small source has its share; the sources of one name that
    # are one document each form one group.
    groups = [-1 - name_of.index(name_of[n]) if kind is Units.WHOLE else n for n, kind in enumerate(spool.kinds)]
    group = np.array(groups)[spool.sources]
    for number in np.unique(group[~held]):
        place = np.flatnonzero((group == number) & ~held)
        held[place] = choose_heldout(len(place), options.fraction)
    if options.fraction and spool.sentences and not held.any():
        raise UserError(
            f"--heldout-fraction {options.fraction:g}: nothing can be held out of a text of {spool.sentences} sentences"
            " in one unit; give more text, or held-out text with --heldout, or --heldout-fraction 0"
        )
    return {"train": Part(spool, ~held), "heldout": Part(spool, held)}


def _units_of(source: Source, is_one_of_several: bool) -> Units:
    if source.has_documents:
        return Units.DOCUMENTS
    # A file of running text that is named with others is one document, as it would be in a folder.
    return Units.WHOLE if is_one_of_several and source.format is Format.RAW else Units.RUNS


def choose_heldout(units: int, fraction: float) -> np.ndarray:
    """Chooses the units to hold out of `units` units, as `PrepareOptions` describes: bool `[units]`."""
    exact = Fraction(str(fraction)).limit_denominator(10**6)  # 3 * 0.1 > 0.3 in floating point
    due = np.arange(units + 1) * exact.numerator // exact.denominator  # the number held out of the first units
    heldout = np.diff(due) > 0
    if fraction and units > 1 and not heldout.any():
        heldout[-1] = True
    return heldout
