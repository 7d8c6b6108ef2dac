"""Makes batches for training as a function of (seed, position).

Shapes: R rows of the global batch, B rows of this process, T steps, S negatives; a leading 2 is the direction, forward
then backward.

A row is an endless concatenation of blocks: row r reads the blocks r, r + R, r + 2R, … of the shuffled order, which is
different in each epoch, or of the order that a mixture of sources gives. So the next tokens depend on the seed and on
the position of the row, and not on the number of processes. Both directions of a window come from the same positions of
the same sentences.

The weight of a source in a mixture is how often an epoch reads each of its blocks, on average. So a weight multiplies
the natural share of a source, whatever its size, and if all weights are 1, an epoch reads the text once.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np

from elmo_jax.config import Config
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.lexicon import UNKNOWN_ID
from elmo_jax.data.windows import Array, BlockSource, DistinctWords, Share, Window, both_directions
from elmo_jax.errors import UserError

Item = TypeVar("Item")


class TrainingBatch(NamedTuple):
    """A window, the position of the rows after it, and the negatives of its step, which all devices share."""

    window: Window
    reset_state: Array  # [T, B] true where a row begins a block
    position: Array  # [B, 2] the block of the row, and the offset in it
    negatives: Array  # [2, S] distinct vocabulary ids
    num_draws: Array  # [2] the number of draws that gave S distinct ids


def draw_negatives(rng: np.random.Generator, number: int, vocabulary_size: int) -> tuple[np.ndarray, int]:
    """Draws ids from the log-uniform distribution over ranks until `number` of them are distinct.

    Returns the distinct ids in the order drawn, int32 [number], and the number of draws made. This is computed in
    float64 on the host, since float32 cannot resolve the rare ranks of a large vocabulary.
    """
    draws = np.empty(0, np.int64)
    while True:
        more = np.exp(rng.random(max(2 * number, len(draws))) * np.log(vocabulary_size + 1)).astype(np.int64) - 1
        draws = np.append(draws, np.minimum(more, vocabulary_size - 1))  # exp may round up to V + 1
        positions = np.arange(len(draws))
        position_of = np.empty(vocabulary_size, np.int64)
        position_of[draws[::-1]] = positions[::-1]  # of a word drawn twice, the last assignment holds: its first place
        first = np.flatnonzero(position_of[draws] == positions)
        if len(first) >= number:
            return draws[first[:number]].astype(np.int32), int(first[number - 1]) + 1


Mixture = Sequence[tuple[str, float]]  # the names of sources, and their weights


class Portion(NamedTuple):
    """The part that a source has in each epoch."""

    blocks: range  # its blocks among those of the split
    number: int  # the number of blocks that an epoch reads; those that it leaves out come first in the next epoch
    tokens: float  # the number of tokens of these blocks, on average


def portions(corpus: Corpus, mixture: Mixture) -> list[Portion]:
    """Returns the portions of the sources in an epoch of the training text.

    A source that the mixture does not name has the weight 1. The number of blocks is rounded, and is at least one
    unless the weight is 0, with which a source is left out.
    """
    sources, weights = corpus.sources("train"), dict(mixture)
    names = [source["name"] for source in sources]
    for name in weights:
        if name not in names:
            known = f"has the sources {', '.join(names)}" if names else "was prepared without names (NAME=SOURCE)"
            raise UserError(f"config.data.mixture: no source {name!r}; the training text of {corpus.path} {known}")
    portions, first = [], 0
    for source in sources:
        blocks, weight = range(first, first + source["blocks"]), weights.get(source["name"], 1.0)
        first = blocks.stop
        if weight:
            number = max(1, round(weight * len(blocks)))
            portions.append(Portion(blocks, number, number * source["tokens"] / len(blocks)))
    if not portions:
        raise UserError("config.data.mixture: every source has the weight 0; expected one that is above 0")
    return portions


def epoch_tokens(corpus: Corpus, mixture: Mixture) -> int:
    """Returns the number of training tokens of one direction in an epoch; see `portions`."""
    if not mixture:
        return corpus.tokens("train")
    return round(sum(portion.tokens for portion in portions(corpus, mixture)))


class MixedBlocks:
    """The endless sequence of the blocks that a mixture reads, with random access.

    Each source is read to its end, in random order, before any of its blocks comes again.
    """

    def __init__(self, blocks: BlockSource, mixed: Sequence[Portion], seed: int) -> None:
        import grain  # takes a while, and neither embeddings nor task models need it

        text: Any = grain.MapDataset.source(blocks).seed(seed)
        self._sources = [text[p.blocks.start : p.blocks.stop].shuffle().repeat() for p in mixed]
        self._numbers = [portion.number for portion in mixed]
        self._starts = np.cumsum([0, *self._numbers])
        self._epoch = int(self._starts[-1])
        self._indices: Any = grain.MapDataset.range(self._epoch).seed(seed).shuffle().repeat()

    def __getitem__(self, index: int) -> np.ndarray:
        """Returns block `index` of the sequence, from 0: int32 `[tokens]`."""
        block = self._indices[index]
        source = int(np.searchsorted(self._starts, block, "right")) - 1
        earlier = index // self._epoch * self._numbers[source]  # blocks of this source in earlier epochs
        return self._sources[source][earlier + block - int(self._starts[source])]


@dataclasses.dataclass(frozen=True)
class BatchSettings:
    """The settings of training batches, which are the same on all processes."""

    total_rows: int  # R, the rows of the global batch
    unroll_steps: int  # T, the tokens per row
    negatives: int  # S, the negatives per direction; 0 for none
    vocabulary_size: int  # the words of the softmax; targets beyond it are `<UNK>`
    data_seed: int  # the random seed for the order of the blocks
    draw_seed: int  # the random seed for the negatives
    directions: int = 2  # 1 for the forward direction alone
    mixed: Sequence[Portion] = ()  # the portions of the sources of a mixture; empty to read all blocks equally often

    @classmethod
    def of(cls, config: Config, vocabulary_size: int) -> "BatchSettings":
        train, directions = config.train, len(config.model.directions)
        sizes = (train.batch_size, train.unroll_steps, train.negatives, vocabulary_size)
        return cls(*sizes, config.data.seed, train.seed, directions)


class TrainingBatches(Iterator[TrainingBatch]):
    """An endless iterator over the batches of this process, for whose rows `blocks_read` blocks were read so far."""

    def __init__(
        self,
        blocks: BlockSource,
        distinct: DistinctWords,
        settings: BatchSettings,
        share: Share,
        position: np.ndarray | None = None,
        step: int = 0,
    ):
        """Opens the text at a position [B, 2], see `TrainingBatch`; the negatives depend on the number `step`."""
        import grain

        dataset: Any = grain.MapDataset.source(blocks)
        self._blocks: Any = dataset.seed(settings.data_seed).shuffle().repeat()  # shuffled again in each epoch
        if settings.mixed:
            self._blocks = MixedBlocks(blocks, settings.mixed, settings.data_seed)
        self._distinct, self._settings, self._step = distinct, settings, step
        self._rows, self._devices = share
        start = np.zeros((len(self._rows), 2)) if position is None else position
        self._position = start.astype(np.int32)  # a copy
        self.blocks_read = 0
        slots = self._position[:, 0].tolist()
        self._text = [self._block(row, slot) for row, slot in zip(self._rows, slots, strict=True)]

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

    def __next__(self) -> TrainingBatch:
        text = np.stack([self._read(index) for index in range(len(self._rows))], axis=-1)  # [5, T, B]
        directions, negatives = self._settings.directions, self._settings.negatives
        inputs, targets = (text[i : 2 * directions : 2] for i in range(2))
        targets = np.where(targets < self._settings.vocabulary_size, targets, UNKNOWN_ID)
        window = self._distinct.window(inputs, targets.astype(np.int32), self._devices)
        seeds = [[self._settings.draw_seed, self._step, direction] for direction in range(directions) if negatives]
        drawn = [draw_negatives(np.random.default_rng(s), negatives, self._settings.vocabulary_size) for s in seeds]
        self._step += 1
        return TrainingBatch(
            window,
            reset_state=text[4] > 0,
            position=self._position.copy(),
            negatives=np.stack([ids for ids, _ in drawn]) if drawn else np.zeros((directions, 0), np.int32),
            num_draws=np.array([num_draws for _, num_draws in drawn] or [0] * directions, np.float32),
        )


def prefetched(items: Iterator[Item]) -> Iterator[Item]:
    """Yields the same items, each made by a thread while the one before is in use."""
    nothing = object()
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
        coming = thread.submit(next, items, nothing)
        while (item := coming.result()) is not nothing:
            coming = thread.submit(next, items, nothing)
            yield item  # type: ignore[misc]
