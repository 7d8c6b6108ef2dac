"""Turns the examples of a task into batches of arrays, and predicts for all of them.

Shapes: N examples, B examples per batch, R rows of a text in a batch.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Generic

import jax
import numpy as np

from elmo_jax.data.batches import prefetched
from elmo_jax.runs.progress import Progress
from elmo_jax.tasks.core.batches import Batch, Buckets
from elmo_jax.tasks.core.inputs import TextEncoder
from elmo_jax.tasks.core.program import BatchArrays, Model, TaskProgram
from elmo_jax.tasks.core.setup import TaskSetup
from elmo_jax.tasks.core.task import Example, Prediction, Shape, Task

MOST_PAIRS = 2**22  # the bound on the pairs of words, which attention compares, in a batch that is not trained on


class TaskData(Generic[Example]):
    """The examples of one split, and their batches.

    Attributes:
      examples: the examples.
      buckets: the examples in buckets of similar length.
    """

    def __init__(
        self,
        setup: TaskSetup[Example, Any],
        encoder: TextEncoder,
        examples: Sequence[Example],
        shapes: Sequence[Shape],
        trains: bool = False,
    ) -> None:
        """Puts the examples, or in training windows of long documents, into buckets of these shapes."""
        train = setup.config.train
        self._task, self._labels, self._encoder, self.examples = setup.task, setup.labels, encoder, examples
        self._batch_size, self._devices, self._trains = train.batch_size, setup.devices, trains
        self._max_sentences = train.max_sentences if trains else 0
        self.buckets = Buckets.of([size_of(setup.task, example, self._max_sentences) for example in examples], shapes)

    def epoch(self, rng: np.random.Generator | None) -> list[Batch]:
        """Returns the batches of an epoch; see `Buckets.epoch`."""
        return self.buckets.epoch(self._slots, rng)

    def _slots(self, shape: Shape) -> int:
        """Returns the number of examples of a batch: `batch_size` or, of long texts in evaluations, fewer."""
        if self._trains:
            return self._batch_size
        pairs = sum(rows * words * words for rows, words in shape[: self._task.texts_per_example])
        return max(1, min(self._batch_size, MOST_PAIRS // pairs))

    def _window(self, number: int, draw: Sequence[int] | None) -> Example:
        """Returns an example, or the window of a long document that `draw` chooses, which is the first one for None."""
        example, most = self.examples[number], self._max_sentences
        rest = len(self._task.texts(example)[0]) - most
        if not most or rest <= 0:
            return example
        first = 0 if draw is None else int(np.random.default_rng([*draw, number]).integers(rest + 1))
        return self._task.window(example, first, most)

    def arrays(
        self, batch: Batch, draw: Sequence[int] | None = None, encoder: TextEncoder | None = None
    ) -> BatchArrays:
        """Returns the arrays of a batch on the host; the numbers `draw`, such as seed and epoch, choose the windows."""
        slots = -(-self._slots(batch.shape) // self._devices) * self._devices  # B
        chosen = [self._window(number, draw) for number in batch.examples]
        texts = [self._task.texts(example) for example in chosen]
        encoded = []
        for i, (rows, words) in enumerate(batch.shape[: self._task.texts_per_example]):
            laid_out: list[list[str]] = []
            for example in texts:
                laid_out += [*example[i], *([[]] * (rows - len(example[i])))]
            encoded.append((encoder or self._encoder)(laid_out, rows * slots, words))
        return BatchArrays(tuple(encoded), self._task.arrays(chosen, slots, batch.shape, self._labels))

    def batch_of_each_shape(self, encoder: TextEncoder) -> list[BatchArrays]:
        """Returns the arrays of one batch of each shape by another encoder."""
        batches = {batch.shape: batch for batch in self.epoch(None)}
        return [self.arrays(batch, encoder=encoder) for batch in batches.values()]

    def iterate(
        self, batches: Sequence[Batch], draw: Sequence[int] | None = None, progress: Progress | None = None
    ) -> Iterator[tuple[Batch, BatchArrays]]:
        """Yields batches and their arrays; a thread makes the next arrays while the current ones are in use.

        The progress is counted by `progress`, or shown here; `draw`, if given, is seed and epoch of a training.
        """
        text = "evaluating" if draw is None else f"seed {draw[0]}, epoch {draw[1] + 1}"
        number = sum(len(batch.examples) for batch in batches)
        with contextlib.nullcontext(progress) if progress else Progress(text, "examples", number) as shown:
            for batch, arrays in prefetched((batch, self.arrays(batch, draw)) for batch in batches):
                yield batch, arrays
                shown.add(len(batch.examples))


def size_of(task: Task[Example, Any], example: Example, max_sentences: int = 0) -> Shape:
    """Returns the sizes that a bucket needs for an example or, if it has too many sentences, for all of its windows."""
    rest = len(task.texts(example)[0]) - max_sentences
    if not max_sentences or rest <= 0:
        return task.size(example)
    sizes = [task.size(task.window(example, first, max_sentences)) for first in range(rest + 1)]
    return tuple((rows, words) for rows, words in np.max(sizes, axis=0).tolist())


def predict(
    setup: TaskSetup[Example, Prediction],
    program: TaskProgram,
    models: Sequence[Model],
    data: TaskData[Example],
    progress: Progress | None = None,
) -> list[Prediction]:
    """Returns the predictions of all examples, in their order; the arrays of several models are averaged first."""
    found: dict[int, Prediction] = {}
    for batch, host in data.iterate(data.epoch(None), progress=progress):
        on_devices = program.place(host)
        each = [jax.device_get(program.evaluate(params, on_devices, kept)[1]) for params, kept in models]
        mean = each[0] if len(each) == 1 else jax.tree.map(lambda *arrays: np.mean(arrays, axis=0), *each)
        chosen = [data.examples[number] for number in batch.examples]
        decoded = setup.task.decode(mean, chosen, setup.labels, setup.config)
        found |= dict(zip(batch.examples, decoded, strict=True))
    return [found[number] for number in range(len(data.examples))]
