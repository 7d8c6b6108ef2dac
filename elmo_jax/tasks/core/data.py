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
from elmo_jax.tasks.core.batches import Batch, Groups, make_groups, size_of
from elmo_jax.tasks.core.inputs import TextEncoder
from elmo_jax.tasks.core.program import BatchArrays, Model, TaskProgram
from elmo_jax.tasks.core.setup import TaskSetup
from elmo_jax.tasks.core.task import Example, Prediction, Shape, Use

# The bounds on a batch with padding that is not trained on: its words where it fits its examples, and its pairs of
# words in an example, which attention compares
MOST_WORDS, MOST_PAIRS = 65_536, 2**22


class TaskData(Generic[Example]):
    """The examples of one split, and their batches.

    Attributes:
      examples: the examples.
      groups: the examples in groups of similar length.
    """

    def __init__(
        self,
        setup: TaskSetup[Example, Any],
        encoder: TextEncoder,
        examples: Sequence[Example],
        known: Sequence[Shape] = (),
        use: Use = "evaluation",
    ) -> None:
        """Groups the examples.

        Examples that fit one of the `known` shapes, for which programs are already compiled, use it (`make_groups`).
        In training, windows of documents above `max_sentences` are read; in prediction, batches fit their examples.
        """
        train = setup.config.train
        self._task, self._labels, self._encoder, self.examples = setup.task, setup.labels, encoder, examples
        self._batch_size, self._devices, self._fits = train.batch_size, setup.devices, use == "prediction"
        self._trains = use == "training"
        self._max_sentences = train.max_sentences if self._trains else 0
        self._most_pairs = train.batch_size * max(map(_pairs, known), default=0)
        sizes = [self._size(example) for example in examples]
        self.groups: Groups = make_groups(sizes, train.shapes, known)

    def epoch(self, rng: np.random.Generator | None) -> list[Batch]:
        """Returns the batches of an epoch; see `Groups.epoch`.

        Batches that fit have no more places than their examples need, rounded up to a power of two, and examples of one
        group only. All others have B places or, for examples that are longer than those of the training, fewer.
        """
        if not self._fits:
            return self.groups.epoch(self._places, rng)
        batches: list[Batch] = []
        for members, shape in zip(self.groups.members, self.groups.shapes, strict=True):
            most = max(1, min(self._places(shape), MOST_WORDS // sum(rows * words for rows, words in shape)))
            most = 1 << (most.bit_length() - 1)
            parts = (members[start : start + most] for start in range(0, len(members), most))
            batches += [Batch(tuple(part.tolist()), shape) for part in parts]
        return batches

    def _places(self, shape: Shape) -> int:
        """Returns the number of places of a batch, so that none takes more memory than those of the training."""
        if self._trains:
            return self._batch_size
        return max(1, min(self._batch_size, max(MOST_PAIRS, self._most_pairs) // _pairs(shape)))

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
        return self._task.window(example, first, most)

    def arrays(self, batch: Batch, draw: Sequence[int] | None = None) -> BatchArrays:
        """Returns the arrays of a batch on the host; the numbers `draw`, such as seed and epoch, choose the windows."""
        examples = 1 << (len(batch.examples) - 1).bit_length() if self._fits else self._places(batch.shape)
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


def _pairs(shape: Shape) -> int:
    return sum(rows * words * words for rows, words in shape)


def predict(
    setup: TaskSetup[Example, Prediction],
    program: TaskProgram,
    models: Sequence[Model],
    data: TaskData[Example],
    progress: Progress | None = None,
) -> list[Prediction]:
    """Returns the predictions of all examples, in their order; the arrays of several models are averaged first."""
    places: dict[int, Prediction] = {}
    for batch, host in data.iterate(data.epoch(None), progress=progress):
        on_devices = program.place(host)
        found = [jax.device_get(program.evaluate(params, on_devices, kept)[1]) for params, kept in models]
        mean = found[0] if len(found) == 1 else jax.tree.map(lambda *each: np.mean(each, axis=0), *found)
        chosen = [data.examples[number] for number in batch.examples]
        decoded = setup.task.decode(mean, chosen, setup.labels, setup.config)
        places |= dict(zip(batch.examples, decoded, strict=True))
    return [places[number] for number in range(len(data.examples))]
