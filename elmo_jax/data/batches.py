"""Batches as a function of (seed, position), for training; the whole text laid out in rows, for evaluation.

Shapes: R rows of the global batch, B rows of this process, T steps, U distinct words of one device, S negatives; a
leading 2 is the direction, forward then backward.

A row is an endless stream of blocks laid end to end: row r reads the blocks r, r + R, r + 2R, … of the shuffled
order, each epoch in an order of its own. So what comes next depends on the seed and on where the row stands, not on
how many processes there are. Both directions of a window come from the same positions of the same sentences.
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
    """Random access to blocks of whole sentences: int32 arrays `[0, w, …, 0, w, …]`, where 0 begins a sentence."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> np.ndarray: ...


class Window(NamedTuple):
    """What one pass reads of the text: on the host this process's part, in a device's program the device's."""

    words: Array  # [U] lexicon ids of the distinct words of each device, shortest first; devices one after another
    word_count: Array  # [1] how many of a device's U are words; devices one after another
    inputs: Array  # [2, T, B] for each token its place among its device's `words`
    targets: Array  # [2, T, B] vocabulary ids


class TrainingBatch(NamedTuple):
    """A window, where the rows stand after it, and the negatives of its step, which all devices share."""

    window: Window
    restart: Array  # [T, B] true where a row begins a block
    position: Array  # [B, 2] block of the row and offset in it
    negatives: Array  # [2, S] distinct vocabulary ids
    tries: Array  # [2] draws made to have them


class EvaluationWindow(NamedTuple):
    """A window of the evaluated text."""

    window: Window
    mask: np.ndarray  # [T, B] true on real tokens
    sentence: np.ndarray  # [T, B] number of the sentence, in the order of the text


def both_directions(block: np.ndarray) -> np.ndarray:
    """[n] -> [4, n]: inputs and targets forward, inputs and targets backward, as lexicon ids.

    A sentence w1…wn gives n + 1 places: forward `<S> w1…wn` -> `w1…wn </S>`, backward `</S> wn…w1` -> `wn…w1 <S>`.
    """
    starts = np.flatnonzero(block == BEGIN_SENTENCE_ID)
    ends = np.append(starts[1:], len(block))
    sentence = np.cumsum(block == BEGIN_SENTENCE_ID) - 1
    place = np.arange(len(block))
    mirror = (starts + ends)[sentence] - place  # of place i within its sentence; one past its end for the first
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
    """Draws from the log-uniform distribution over ranks until `number` are distinct.

    In float64 on the host: float32 cannot tell the rare ranks of a large vocabulary apart.

    Returns:
      [number] int32 ids in the order drawn, and the draws it took.
    """
    draws = np.empty(0, np.int64)
    while True:
        more = np.exp(rng.random(max(2 * number, len(draws))) * np.log(vocabulary_size + 1)).astype(np.int64) - 1
        draws = np.append(draws, np.minimum(more, vocabulary_size - 1))  # exp may round up to V + 1
        places = np.arange(len(draws))
        place_of = np.empty(vocabulary_size, np.int64)
        place_of[draws[::-1]] = places[::-1]  # of a word drawn again, the last assignment stays: its first place
        first = np.flatnonzero(place_of[draws] == places)
        if len(first) >= number:
            return draws[first[:number]].astype(np.int32), int(first[number - 1]) + 1


class DistinctWords:
    """Finds the distinct words of a window, for each device, and puts the short ones first."""

    def __init__(self, spellings: np.ndarray, padding: int):
        """`spellings` [types, W] are the lexicon's character ids."""
        lengths = (spellings != padding).sum(1)
        self._by_length = np.argsort(lengths, kind="stable").astype(np.int32)
        self._rank = np.empty_like(self._by_length)
        self._rank[self._by_length] = np.arange(len(lengths), dtype=np.int32)

    def window(self, inputs: np.ndarray, targets: np.ndarray, devices: int) -> Window:
        """`inputs` [2, T, B] are lexicon ids, `targets` [2, T, B] vocabulary ids; the devices share out B."""
        share = inputs.shape[2] // devices
        room = min(2 * inputs.shape[1] * share, len(self._rank))  # U: what a window can hold at most
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
    """What training batches are made of, the same on all processes."""

    total_rows: int  # of the global batch
    unroll_steps: int
    negatives: int
    vocabulary_size: int
    data_seed: int  # of the order of the blocks
    draw_seed: int  # of the negatives


class TrainingBatches(Iterator[TrainingBatch]):
    """The batches of this process from a position on.

    Attributes:
      blocks_read: records read so far, those of this process's rows alone.
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
          settings: what the batches are made of.
          rows: those of the global batch that this process reads, B of them.
          devices: of this process.
          position: [B, 2], where these rows stand.
          step: updates made, which the negatives depend on.
        """
        dataset: Any = grain.MapDataset.source(blocks)
        self._blocks = dataset.seed(settings.data_seed).shuffle().repeat()  # another order in each epoch
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
        """The batches of an experiment and its corpus, from the beginning on unless `position` and `step` are given.

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
        """[5, n]: both directions, and a mark on the first place."""
        text = both_directions(self._blocks[slot * self._settings.total_rows + row])
        self.blocks_read += 1
        return np.concatenate([text, np.arange(text.shape[1])[None] == 0])

    def _read(self, index: int) -> np.ndarray:
        """[5, T]: the next window of one row."""
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
    """Every token of some blocks once: the text cut between sentences into `rows` even parts, side by side.

    Args:
      rows: parts of the text. padded_rows: rows of the global batch, those past `rows` are empty.
      my_rows: of the padded rows, those of this process. devices: of this process.
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
    """The same items, each made by a thread while the one before is in use. An error comes out where its item would."""
    nothing = object()
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
        coming = thread.submit(next, items, nothing)
        while (item := coming.result()) is not nothing:
            coming = thread.submit(next, items, nothing)
            yield item  # type: ignore[misc]
