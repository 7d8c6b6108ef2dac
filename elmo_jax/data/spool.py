"""The first reading of a text: words are numbered as they come, and spooled to disk.

Final ids depend on counts, and counts on which documents are held out, both known only at the end. So
the text is spooled as provisional ids, four bytes a word, and memory holds the distinct words and
one number a unit, whatever the text's length.

A unit is what is held out or kept as a whole: a document, or, where documents are not known (a single
file), `SENTENCES_A_UNIT` consecutive sentences.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from elmo_jax.data.characters import MARKS
from elmo_jax.data.progress import Progress
from elmo_jax.data.sources import Source, chunks
from elmo_jax.data.text import Chunk, Errors, Tokenised
from elmo_jax.data.workers import tokenise_all

SENTENCES_A_UNIT = 100
_SENTENCES_AT_ONCE = 1 << 17  # of the second reading: a few million words, tens of megabytes


class Spool:
    """Text as provisional ids, in files of a folder.

    Attributes:
        documents_known: whether a unit is a document.
        sentences, words: how many there are.
        empty_lines, marks_dropped, replaced_lines: as in `Tokenised`.
    """

    def __init__(self, folder: Path, name: str, ids: dict[str, int], documents_known: bool) -> None:
        """Make an empty spool. `ids` (word to provisional id) grows; the spools of a corpus share it."""
        self._ids_path, self._lengths_path = folder / f"{name}.ids", folder / f"{name}.lengths"
        self._ids = ids
        self.documents_known = documents_known
        self._units: list[np.ndarray] = []
        self._open = 0  # sentences in the unit that may still grow
        self.sentences = self.words = 0
        self.empty_lines = self.marks_dropped = self.replaced_lines = 0

    def read(self, chunks: Iterable[Chunk], workers: int, progress: Progress) -> None:
        """Tokenise all chunks, in order, and write them."""
        with self._ids_path.open("wb") as ids_file, self._lengths_path.open("wb") as lengths_file:
            for chunk, found in tokenise_all(chunks, workers):
                ids = self._ids
                provisional = [ids.setdefault(word, len(ids)) for word in found.types]
                # Not ndarray.tofile, which does not tell when the disk is full.
                ids_file.write(np.array(provisional, np.int32)[found.ids].tobytes())
                lengths_file.write(found.lengths.tobytes())
                self._count(chunk, found)
                progress.add(len(found.ids))
        self._units.append(np.array([self._open] if self._open else [], np.int32))

    def _count(self, chunk: Chunk, found: Tokenised) -> None:
        self.sentences += len(found.lengths)
        self.words += len(found.ids)
        self.empty_lines += found.empty_lines
        self.marks_dropped += found.marks_dropped
        self.replaced_lines += found.replaced_lines
        if self.documents_known:
            starts = np.array([piece.starts_document for piece in chunk.pieces])
            # Sentences before the first start belong to the open document.
            bounds = np.flatnonzero(starts)
            before = np.concatenate([[0], np.cumsum(found.pieces)])
            edges = np.concatenate([[0], before[bounds], [before[-1]]])
            units = np.diff(edges)
            units[0] += self._open
            self._open = int(units[-1])
            closed = units[:-1]
            self._units.append(closed[closed > 0].astype(np.int32))
        else:
            full, self._open = divmod(self._open + len(found.lengths), SENTENCES_A_UNIT)
            self._units.append(np.full(full, SENTENCES_A_UNIT, np.int32))

    @property
    def units(self) -> np.ndarray:
        """int32 `[units]`: sentences in each, none zero."""
        return np.concatenate([np.zeros(0, np.int32), *self._units])

    def parts(self, units: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Read back some units, in order.

        Args:
            units: bool `[units]`, those wanted.

        Yields:
            int32 `[words]` provisional ids, and int32 `[sentences]` lengths, of consecutive parts.
        """
        wanted = np.repeat(units, self.units)  # [sentences]
        with self._ids_path.open("rb") as ids_file, self._lengths_path.open("rb") as lengths_file:
            for start in range(0, self.sentences, _SENTENCES_AT_ONCE):
                lengths = np.fromfile(lengths_file, np.int32, _SENTENCES_AT_ONCE)
                ids = np.fromfile(ids_file, np.int32, int(lengths.sum()))
                keep = wanted[start : start + len(lengths)]
                yield ids[np.repeat(keep, lengths)], lengths[keep]

    @property
    def types(self) -> list[str]:
        """Every distinct word, of all spools that share ids; its place is its provisional id."""
        return list(self._ids)

    def remove(self) -> None:
        """Delete the files."""
        self._ids_path.unlink()
        self._lengths_path.unlink()


@dataclasses.dataclass(frozen=True)
class Part:
    """Some units of a spool: the text of one split. `units` is bool `[units]`."""

    spool: Spool
    units: np.ndarray

    def read(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The text in order; see `Spool.parts`."""
        return self.spool.parts(self.units)

    def counts(self, types: int) -> np.ndarray:
        """How often each word is used: int64 `[types]`, by provisional id."""
        counts = np.zeros(types, np.int64)
        for ids, _ in self.read():
            counts += np.bincount(ids, minlength=types)
        return counts

    @property
    def sentences(self) -> int:
        """How many there are."""
        return int(self.spool.units[self.units].sum())

    @property
    def documents(self) -> int | None:
        """How many there are, or None where the text does not say."""
        return int(self.units.sum()) if self.spool.documents_known else None


def spool_text(
    folder: Path,
    text: Sequence[Source],
    heldout: Sequence[Source] | float,
    errors: Errors,
    workers: int,
    progress: bool,
) -> dict[str, Part]:
    """Read all text and say which of it is which split.

    Args:
        folder: for the spools.
        text: the sources.
        heldout: other sources to hold out, or the share of `text`'s units to hold out.
        errors, workers: see `prepare`.
        progress: show it.

    Returns:
        The parts `train` and `heldout`; they share provisional ids.
    """
    ids = {mark: i for i, mark in enumerate(MARKS)}
    with Progress("reading the text", progress) as bar:

        def spool(name: str, sources: Sequence[Source]) -> Spool:
            documents_known = len(sources) > 1 or sources[0].documents > 0
            made = Spool(folder, name, ids, documents_known)
            made.read(chunks(sources, errors), workers, bar)
            return made

        train = spool("train", text)
        if isinstance(heldout, float):
            held = choose_heldout(len(train.units), heldout)
            return {"train": Part(train, ~held), "heldout": Part(train, held)}
        other = spool("heldout", heldout)
    return {
        "train": Part(train, np.ones(len(train.units), bool)),
        "heldout": Part(other, np.ones(len(other.units), bool)),
    }


def choose_heldout(units: int, fraction: float) -> np.ndarray:
    """Choose which of `units` units to hold out: bool `[units]`; see `prepare.prepare`."""
    heldout = np.zeros(units, bool)
    if fraction:
        every = round(1 / fraction)
        heldout[every - 1 :: every] = True
        if units > 1 and not heldout.any():
            heldout[-1] = True
    return heldout
