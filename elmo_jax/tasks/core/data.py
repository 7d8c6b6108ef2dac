"""Turns the examples of a task into batches of arrays.

Shapes: N examples, B examples per batch, R rows of a text in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, cast

import numpy as np

from elmo_jax.data.batches import prefetched
from elmo_jax.tasks.core.batches import Batch, Groups, make_groups, size_of
from elmo_jax.tasks.core.inputs import TextEncoder
from elmo_jax.tasks.core.program import BatchArrays
from elmo_jax.tasks.core.task import DocumentTask, Example, Labels, Shape, Task

MOST_WORDS = 65_536  # of a batch with padding, where batches fit their examples


class TaskData(Generic[Example]):
    """The examples of one split, and their batches.

    Attributes:
      examples: the examples.
      groups: the examples in groups of similar length.
      words: the number of words in all texts of the examples.
    """

    def __init__(
        self,
        task: Task[Example, Any],
        examples: Sequence[Example],
        labels: Labels,
        encoder: TextEncoder,
        batch_size: int,
        devices: int,
        shapes: int,
        known: Sequence[Shape] = (),
        max_sentences: int = 0,
        fits: bool = False,
    ) -> None:
        """Groups the examples.

        Args:
          task: the task.
          examples: the examples of the split.
          labels: see `Task.labels`.
          encoder: the encoder that makes the arrays of texts.
          batch_size: the number of examples per batch.
          devices: the number of devices that a batch is divided over; B is rounded up to a multiple of it.
          shapes: the largest number of new groups; see `make_groups`.
          known: the shapes that exist already; see `make_groups`.
          max_sentences: the number of sentences above which windows of a document are read; 0 for no limit.
          fits: whether a batch has no more places than its examples need, rounded up to a power of two, and examples
            of one group only; long ones are in smaller batches. Otherwise all batches have B places.
        """
        self._task, self.examples, self._labels, self._encoder = task, examples, labels, encoder
        self._batch_size, self._devices, self._fits = batch_size, devices, fits
        self._max_sentences = max_sentences
        sizes = [self._size(example) for example in examples]
        self.groups: Groups = make_groups(sizes, shapes, known)
        self.words = sum(len(row) for example in examples for text in task.texts(example) for row in text)

    def epoch(self, rng: np.random.Generator | None) -> list[Batch]:
        """Returns the batches of an epoch; see `Groups.epoch`."""
        if not self._fits:
            return self.groups.epoch(self._batch_size, rng)
        batches: list[Batch] = []
        for members, shape in zip(self.groups.members, self.groups.shapes, strict=True):
            most = max(1, min(self._batch_size, MOST_WORDS // sum(rows * words for rows, words in shape)))
            parts = (members[start : start + most] for start in range(0, len(members), most))
            batches += [Batch(tuple(part.tolist()), shape) for part in parts]
        return batches

    def _size(self, example: Example) -> Shape:
        most = self._max_sentences
        return tuple((min(rows, most) if most else rows, words) for rows, words in size_of(self._task.texts(example)))

    def _drawn(self, number: int, draw: Sequence[int] | None) -> Example:
        """Returns an example, or the window of a long document that `draw` chooses, which is the first one for None."""
        example, most = self.examples[number], self._max_sentences
        rest = len(self._task.texts(example)[0]) - most
        if not most or rest <= 0:
            return example
        first = 0 if draw is None else int(np.random.default_rng([*draw, number]).integers(rest + 1))
        return cast("DocumentTask[Example, Any]", self._task).window(example, first, most)

    def arrays(self, batch: Batch, draw: Sequence[int] | None = None) -> BatchArrays:
        """Returns the arrays of a batch on the host; the numbers `draw`, such as seed and epoch, choose the windows."""
        examples = 1 << (len(batch.examples) - 1).bit_length() if self._fits else self._batch_size
        places = -(-examples // self._devices) * self._devices  # B
        chosen = [self._drawn(number, draw) for number in batch.examples]
        texts = [self._task.texts(example) for example in chosen]
        encoded = []
        for place, (rows, words) in enumerate(batch.shape):
            laid_out: list[list[str]] = []
            for example in texts:
                text = example[place]
                laid_out += [*text, *([[]] * (rows - len(text)))]
            encoded.append(self._encoder(laid_out, rows * places, words))
        return BatchArrays(tuple(encoded), self._task.arrays(chosen, places, batch.shape, self._labels))

    def iterate(
        self, batches: Sequence[Batch], draw: Sequence[int] | None = None
    ) -> Iterator[tuple[Batch, BatchArrays]]:
        """Yields batches and their arrays; a thread makes the next arrays while the current ones are in use."""
        return prefetched((batch, self.arrays(batch, draw)) for batch in batches)
