"""Makes windows of text in both directions, and lays out a whole text in rows for evaluation.

Shapes: B rows of this process, T steps, U distinct words of one device; a leading 2 is the direction, forward then
backward.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from elmo_jax.data.blocks import BLOCK_TOKENS
from elmo_jax.data.lexicon import BEGIN_SENTENCE_ID, END_SENTENCE_ID, UNKNOWN_ID

LONGEST_OVERRUN = 2_000  # tokens by which a row of an evaluation is made longer, so that it ends with a sentence
Array = Any  # a NumPy array on the host, a jax.Array in a device's program


class BlockSource(Protocol):
    """A source of blocks with random access; a block is an int32 array of sentences, each begun by 0: `[0, w, …]`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> np.ndarray: ...


def spread_blocks(blocks: BlockSource, tokens: int) -> BlockSource:
    """Returns blocks with about `tokens` tokens, spread evenly over a text; all of them if it is shorter, or for 0."""
    number = -(-tokens // BLOCK_TOKENS)
    if not tokens or number >= len(blocks):
        return blocks
    return [blocks[i * len(blocks) // number] for i in range(number)]


class Window(NamedTuple):
    """The part of the text that one pass reads: on the host that of this process, in a device's program its own."""

    words: Array  # [U] lexicon ids of the distinct words of a device, shortest first; the devices are concatenated
    word_count: Array  # [1] the number of a device's U ids that are words; the devices are concatenated
    inputs: Array  # [2, T, B] for each token, its index into the `words` of its device
    targets: Array  # [2, T, B] vocabulary ids


class Share(NamedTuple):
    """The part of the global batch that this process reads."""

    rows: range  # B rows of the global batch
    devices: int  # of this process, each of the k groups of rows of a device counting as one


class EvaluationLayout(NamedTuple):
    """The arrangement in which a text is evaluated."""

    rows: int  # the number of parts that the text is cut into
    padded_rows: int  # the rows of the global batch; those past `rows` are empty
    unroll_steps: int  # T, the tokens per row and window
    vocabulary_size: int  # the words of the softmax; targets beyond it are `<UNK>`
    directions: int = 2  # 1 for the forward direction alone


class EvaluationWindow(NamedTuple):
    """A window of the text that is evaluated."""

    window: Window
    mask: np.ndarray  # [T, B] true for tokens, false for padding
    sentence: np.ndarray  # [T, B] the index of the sentence in the text
    left: int  # the number of windows after this one


def both_directions(block: np.ndarray) -> np.ndarray:
    """Returns the inputs and targets of both directions, as lexicon ids.

    A sentence w1…wn gives n + 1 places: forward `<S> w1…wn` -> `w1…wn </S>`, backward `</S> wn…w1` -> `wn…w1 <S>`.
    Returns [4, n] forward inputs, forward targets, backward inputs and backward targets of a block [n].
    """
    starts = np.flatnonzero(block == BEGIN_SENTENCE_ID)
    ends = np.append(starts[1:], len(block))
    sentence = np.cumsum(block == BEGIN_SENTENCE_ID) - 1
    position = np.arange(len(block))
    mirror = (starts + ends)[sentence] - position  # of place i in its sentence; for the first place, one past the end
    forward = np.append(block[1:], BEGIN_SENTENCE_ID)
    padded = np.append(block, END_SENTENCE_ID)
    first = position == starts[sentence]
    forward_targets = np.where(forward == BEGIN_SENTENCE_ID, END_SENTENCE_ID, forward)
    return np.stack([block, forward_targets, np.where(first, END_SENTENCE_ID, padded[mirror]), block[mirror - 1]])


class DistinctWords:
    """Finds the distinct words of a window for each device, and sorts them by length, shortest first."""

    def __init__(self, char_ids: np.ndarray, padding: int):
        """Sorts the lexicon, whose character ids are `char_ids` [types, W] filled up with `padding`, by length."""
        lengths = (char_ids != padding).sum(1)
        self._by_length = np.argsort(lengths, kind="stable").astype(np.int32)
        self._rank = np.empty_like(self._by_length)
        self._rank[self._by_length] = np.arange(len(lengths), dtype=np.int32)

    def window(self, inputs: np.ndarray, targets: np.ndarray, devices: int) -> Window:
        """Makes the window of lexicon ids `inputs` and vocabulary ids `targets`, [2, T, B], with B over the devices."""
        share = inputs.shape[2] // devices
        # U: the most distinct words that a window can have
        room = min(len(inputs) * inputs.shape[1] * share, len(self._rank))
        words = np.zeros((devices, room), np.int32)
        word_count = np.zeros((devices,), np.int32)
        indices = np.empty(inputs.shape, np.int32)
        for device in range(devices):
            rows = slice(device * share, (device + 1) * share)
            ranks, inverse = np.unique(self._rank[inputs[:, :, rows]], return_inverse=True)
            words[device, : len(ranks)] = self._by_length[ranks]
            word_count[device] = len(ranks)
            indices[:, :, rows] = inverse.reshape(-1, inputs.shape[1], share)
        return Window(words.reshape(-1), word_count, indices, targets)


def evaluation_windows(
    blocks: BlockSource, distinct: DistinctWords, layout: EvaluationLayout, share: Share
) -> Iterator[EvaluationWindow]:
    """Yields every token of some blocks once, the text being cut between sentences into rows of about equal length.

    Memory holds one block per row, and two numbers per block, however long the text is. A row ends inside a sentence
    only where the next one begins more than `LONGEST_OVERRUN` tokens later. This process has the rows of its `share`.
    """
    steps = layout.unroll_steps
    each_block = map(blocks.__getitem__, range(len(blocks)))
    sizes = [(len(block), np.count_nonzero(block == BEGIN_SENTENCE_ID)) for block in each_block]
    starts, sentences = np.cumsum([(0, 0), *sizes], axis=0).T  # of the blocks: first position, number of first sentence
    bounds = [_cut(blocks, starts, int(cut)) for cut in np.linspace(0, starts[-1], layout.rows + 1)]
    length = -(-int(np.diff(bounds).max()) // steps) * steps
    rows = [_Row(blocks, starts, sentences, *bounds[row : row + 2]) for row in share.rows if row < layout.rows]
    for first in range(0, length, steps):
        part = np.zeros((6, steps, len(share.rows)), np.int32)  # both directions, mask, sentence
        for column, row in enumerate(rows):
            taken = row.take(steps)
            part[:, : taken.shape[1], column] = taken
        inputs, targets = (part[i : 2 * layout.directions : 2] for i in range(2))
        targets = np.where(targets < layout.vocabulary_size, targets, UNKNOWN_ID).astype(np.int32)
        window = distinct.window(inputs, targets, share.devices)
        yield EvaluationWindow(window, part[4] > 0, part[5], left=(length - first) // steps - 1)


def _cut(blocks: BlockSource, starts: np.ndarray, position: int) -> int:
    """Returns where a row ends that should end at a position of the text: at the next sentence if that is near."""
    block, near = int(np.searchsorted(starts, position, "right")) - 1, position + LONGEST_OVERRUN
    while block < len(blocks) and starts[block] <= near:
        begins = starts[block] + np.flatnonzero(blocks[block] == BEGIN_SENTENCE_ID)
        begins = begins[begins >= position]
        if len(begins):
            return int(begins[0]) if begins[0] <= near else position
        block += 1
    return int(starts[-1]) if starts[-1] <= near else position


class _Row:
    """A row of an evaluation, the positions from `first` to before `end` of the text, which reads block by block."""

    def __init__(self, blocks: BlockSource, starts: np.ndarray, sentences: np.ndarray, first: int, end: int) -> None:
        self._blocks, self._starts, self._sentences = blocks, starts, sentences
        self._position, self._end = first, end
        self._read = np.zeros((6, 0), np.int32)  # what is read and not yet taken

    def take(self, number: int) -> np.ndarray:
        """Returns the next `number` tokens, or as many as are left: both directions, 1, number of the sentence."""
        while self._read.shape[1] < number and self._position < self._end:
            block = int(np.searchsorted(self._starts, self._position, "right")) - 1
            text, start = self._blocks[block], self._starts[block]
            numbers = self._sentences[block] + np.cumsum(text == BEGIN_SENTENCE_ID) - 1
            laid = np.concatenate([both_directions(text), [np.ones_like(text), numbers]]).astype(np.int32)
            part = laid[:, self._position - start : self._end - start]
            self._read = np.concatenate([self._read, part], axis=1)
            self._position = int(start) + len(text)
        taken, self._read = self._read[:, :number], self._read[:, number:]
        return taken
