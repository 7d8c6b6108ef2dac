"""Makes batches for training as a function of (seed, position), and lays out a whole text in rows for evaluation.

Shapes: R rows of the global batch, B rows of this process, T steps, U distinct words of one device, S negatives; a
leading 2 is the direction, forward then backward.

A row is an endless concatenation of blocks: row r reads the blocks r, r + R, r + 2R, … of the shuffled order, which is
different in each epoch. So the next tokens depend on the seed and on the position of the row, and not on the number of
processes. Both directions of a window come from the same positions of the same sentences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

import grain
import numpy as np

from elmo_jax.config import Config
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.lexicon import BEGIN_SENTENCE_ID, END_SENTENCE_ID, UNKNOWN_ID

Item = TypeVar("Item")
Array = Any  # a NumPy array on the host, a jax.Array in a device's program


class BlockSource(Protocol):
    """A source of blocks with random access; a block is an int32 array `[0, w, …, 0, w, …]` of whole sentences.

    The id 0 begins each sentence.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> np.ndarray: ...


class Window(NamedTuple):
    """The part of the text that one pass reads: on the host that of this process, in a device's program its own."""

    words: Array  # [U] lexicon ids of the distinct words of a device, shortest first; the devices are concatenated
    word_count: Array  # [1] the number of a device's U ids that are words; the devices are concatenated
    inputs: Array  # [2, T, B] for each token, its index into the `words` of its device
    targets: Array  # [2, T, B] vocabulary ids


class TrainingBatch(NamedTuple):
    """A window, the position of the rows after it, and the negatives of its step, which all devices share."""

    window: Window
    restart: Array  # [T, B] true where a row begins a block
    position: Array  # [B, 2] the block of the row, and the offset in it
    negatives: Array  # [2, S] distinct vocabulary ids
    tries: Array  # [2] the number of draws that gave S distinct ids


class EvaluationWindow(NamedTuple):
    """A window of the text that is evaluated."""

    window: Window
    mask: np.ndarray  # [T, B] true for tokens, false for padding
    sentence: np.ndarray  # [T, B] the index of the sentence in the text


def both_directions(block: np.ndarray) -> np.ndarray:
    """Returns the inputs and targets of both directions, as lexicon ids.

    A sentence w1…wn gives n + 1 places: forward `<S> w1…wn` -> `w1…wn </S>`, backward `</S> wn…w1` -> `wn…w1 <S>`.

    Args:
      block: [n] whole sentences, each begun by 0.

    Returns:
      [4, n] forward inputs, forward targets, backward inputs, backward targets.
    """
    starts = np.flatnonzero(block == BEGIN_SENTENCE_ID)
    ends = np.append(starts[1:], len(block))
    sentence = np.cumsum(block == BEGIN_SENTENCE_ID) - 1
    place = np.arange(len(block))
    mirror = (starts + ends)[sentence] - place  # of place i in its sentence; for the first place, one past the end
    forward = np.append(block[1:], BEGIN_SENTENCE_ID)
    padded = np.append(block, END_SENTENCE_ID)
    first = place == starts[sentence]
    return np.stack(
        [
            block,
            np.where(forward == BEGIN_SENTENCE_ID, END_SENTENCE_ID, forward),
            np.where(first, END_SENTENCE_ID, padded[mirror]),
            block[mirror - 1],
        ]
    )


def draw_negatives(rng: np.random.Generator, number: int, vocabulary_size: int) -> tuple[np.ndarray, int]:
    """Draws ids from the log-uniform distribution over ranks until `number` of them are distinct.

    This is computed in float64 on the host, since float32 cannot resolve the rare ranks of a large vocabulary.

    Returns:
      The distinct ids in the order drawn, int32 [number], and the number of draws made.
    """
    draws = np.empty(0, np.int64)
    while True:
        more = np.exp(rng.random(max(2 * number, len(draws))) * np.log(vocabulary_size + 1)).astype(np.int64) - 1
        draws = np.append(draws, np.minimum(more, vocabulary_size - 1))  # exp may round up to V + 1
        places = np.arange(len(draws))
        place_of = np.empty(vocabulary_size, np.int64)
        place_of[draws[::-1]] = places[::-1]  # of a word drawn twice, the last assignment holds: its first place
        first = np.flatnonzero(place_of[draws] == places)
        if len(first) >= number:
            return draws[first[:number]].astype(np.int32), int(first[number - 1]) + 1


class DistinctWords:
    """Finds the distinct words of a window for each device, and sorts them by length, shortest first."""

    def __init__(self, spellings: np.ndarray, padding: int):
        """Sorts the lexicon by length.

        Args:
          spellings: [types, W] the character ids of the lexicon.
          padding: the character id that fills a row.
        """
        lengths = (spellings != padding).sum(1)
        self._by_length = np.argsort(lengths, kind="stable").astype(np.int32)
        self._rank = np.empty_like(self._by_length)
        self._rank[self._by_length] = np.arange(len(lengths), dtype=np.int32)

    def window(self, inputs: np.ndarray, targets: np.ndarray, devices: int) -> Window:
        """Makes the window of some tokens.

        Args:
          inputs: [2, T, B] lexicon ids.
          targets: [2, T, B] vocabulary ids.
          devices: the number of devices that the B rows are divided over.
        """
        share = inputs.shape[2] // devices
        room = min(2 * inputs.shape[1] * share, len(self._rank))  # U: the most distinct words that a window can have
        words = np.zeros((devices, room), np.int32)
        word_count = np.zeros((devices,), np.int32)
        places = np.empty(inputs.shape, np.int32)
        for device in range(devices):
            rows = slice(device * share, (device + 1) * share)
            ranks, inverse = np.unique(self._rank[inputs[:, :, rows]], return_inverse=True)
            words[device, : len(ranks)] = self._by_length[ranks]
            word_count[device] = len(ranks)
            places[:, :, rows] = inverse.reshape(2, inputs.shape[1], share)
        return Window(words.reshape(-1), word_count, places, targets)


@dataclasses.dataclass(frozen=True)
class BatchSettings:
    """The settings of training batches, which are the same on all processes.

    Attributes:
      total_rows: R, the rows of the global batch.
      unroll_steps: T, the tokens per row.
      negatives: S, the negatives per direction; 0 for none.
      vocabulary_size: the words of the softmax; targets beyond it are `<UNK>`.
      data_seed: the random seed for the order of the blocks.
      draw_seed: the random seed for the negatives.
    """

    total_rows: int
    unroll_steps: int
    negatives: int
    vocabulary_size: int
    data_seed: int
    draw_seed: int


class TrainingBatches(Iterator[TrainingBatch]):
    """An endless iterator over the batches of this process from a position on.

    Attributes:
      blocks_read: the number of blocks read so far for the rows of this process.
    """

    def __init__(
        self,
        blocks: BlockSource,
        distinct: DistinctWords,
        settings: BatchSettings,
        rows: range,
        devices: int,
        position: np.ndarray,
        step: int,
    ):
        """Opens the text at a position.

        Args:
          blocks: the text.
          distinct: finds the distinct words of a window.
          settings: the settings of the batches.
          rows: the B rows of the global batch that this process reads.
          devices: the number of devices of this process.
          position: [B, 2] the position of these rows: the block of each row, and the offset in it.
          step: the number of updates made, which the negatives depend on.
        """
        dataset: Any = grain.MapDataset.source(blocks)
        self._blocks = dataset.seed(settings.data_seed).shuffle().repeat()  # shuffled anew in each epoch
        self._distinct, self._settings, self._rows, self._devices = distinct, settings, rows, devices
        self._step = step
        self._position = position.astype(np.int32).copy()
        self.blocks_read = 0
        self._text = [self._block(row, slot) for row, (slot, _) in zip(rows, self._position.tolist(), strict=True)]

    @classmethod
    def from_config(
        cls,
        config: Config,
        corpus: Corpus,
        distinct: DistinctWords,
        *,
        rows: range,
        devices: int,
        position: np.ndarray | None = None,
        step: int = 0,
        vocabulary_size: int | None = None,
    ) -> TrainingBatches:
        """Makes the batches of an experiment and its corpus, from the beginning unless `position` and `step` are given.

        `vocabulary_size` is that of the corpus unless given; the other arguments are those of the constructor.
        """
        train = config.train
        settings = BatchSettings(
            total_rows=train.batch_size,
            unroll_steps=train.unroll_steps,
            negatives=train.negatives,
            vocabulary_size=vocabulary_size or corpus.vocabulary_size,
            data_seed=config.data.seed,
            draw_seed=train.seed,
        )
        position = np.zeros((len(rows), 2), np.int32) if position is None else position
        return cls(corpus.blocks("train"), distinct, settings, rows, devices, position, step)

    def _block(self, row: int, slot: int) -> np.ndarray:
        """Returns a block of a row as [5, n]: both directions, and 1 at the first place."""
        text = both_directions(self._blocks[slot * self._settings.total_rows + row])
        self.blocks_read += 1
        return np.concatenate([text, np.arange(text.shape[1])[None] == 0])

    def _read(self, index: int) -> np.ndarray:
        """Returns the next window of the row with this index, [5, T]."""
        parts, missing = [], self._settings.unroll_steps
        while missing:
            slot, offset = self._position[index].tolist()
            text = self._text[index]
            part = text[:, offset : offset + missing]
            parts.append(part)
            missing -= part.shape[1]
            offset += part.shape[1]
            if offset == text.shape[1]:
                slot, offset = slot + 1, 0
                self._text[index] = self._block(self._rows[index], slot)
            self._position[index] = slot, offset
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _draw(self, direction: int) -> tuple[np.ndarray, int]:
        rng = np.random.default_rng([self._settings.draw_seed, self._step, direction])
        return draw_negatives(rng, self._settings.negatives, self._settings.vocabulary_size)

    def __next__(self) -> TrainingBatch:
        text = np.stack([self._read(index) for index in range(len(self._rows))], axis=-1)  # [5, T, B]
        targets = np.where(text[1:4:2] < self._settings.vocabulary_size, text[1:4:2], UNKNOWN_ID)
        window = self._distinct.window(text[0:4:2], targets.astype(np.int32), self._devices)
        drawn = [self._draw(direction) for direction in range(2) if self._settings.negatives]
        self._step += 1
        return TrainingBatch(
            window,
            restart=text[4] > 0,
            position=self._position.copy(),
            negatives=np.stack([ids for ids, _ in drawn]) if drawn else np.zeros((2, 0), np.int32),
            tries=np.array([tries for _, tries in drawn] or [0, 0], np.float32),
        )


def evaluation_windows(
    blocks: Sequence[np.ndarray] | BlockSource,
    distinct: DistinctWords,
    *,
    vocabulary_size: int,
    rows: int,
    padded_rows: int,
    my_rows: slice,
    unroll_steps: int,
    devices: int,
) -> Iterator[EvaluationWindow]:
    """Yields every token of some blocks once, the text being cut between sentences into rows of about equal length.

    Args:
      blocks: the text.
      distinct: finds the distinct words of a window.
      vocabulary_size: the words of the softmax; targets beyond it are `<UNK>`.
      rows: the number of parts that the text is cut into.
      padded_rows: the rows of the global batch; those past `rows` are empty.
      my_rows: the padded rows of this process, B of them.
      unroll_steps: T, the tokens per row and window.
      devices: the number of devices of this process.
    """
    text = np.concatenate([blocks[i] for i in range(len(blocks))])
    starts = np.append(np.flatnonzero(text == BEGIN_SENTENCE_ID), len(text))
    bounds = starts[np.searchsorted(starts, np.linspace(0, len(text), rows + 1)[:-1].astype(np.int64))]
    bounds = np.append(bounds, len(text))
    longest = int(np.diff(bounds).max())
    length = -(-longest // unroll_steps) * unroll_steps
    laid = np.zeros((6, length, padded_rows), np.int32)  # both directions, mask, sentence
    numbers = np.cumsum(text == BEGIN_SENTENCE_ID) - 1
    for row, (first, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        if end > first:
            laid[:4, : end - first, row] = both_directions(text[first:end])
            laid[4, : end - first, row] = 1
            laid[5, : end - first, row] = numbers[first:end]
    laid = laid[:, :, my_rows]
    for first in range(0, length, unroll_steps):
        part = laid[:, first : first + unroll_steps]
        targets = np.where(part[1:4:2] < vocabulary_size, part[1:4:2], UNKNOWN_ID).astype(np.int32)
        window = distinct.window(part[0:4:2], targets, devices)
        yield EvaluationWindow(window, mask=part[4] > 0, sentence=part[5])


def prefetched(items: Iterator[Item]) -> Iterator[Item]:
    """Yields the same items, each made by a thread while the one before is in use.

    An exception of `items` is raised in the place of the item.
    """
    nothing = object()
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
        coming = thread.submit(next, items, nothing)
        while (item := coming.result()) is not nothing:
            coming = thread.submit(next, items, nothing)
            yield item  # type: ignore[misc]
