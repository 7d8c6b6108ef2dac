"""Makes batches of examples of similar length in a few shapes, so that few programs are compiled, and predicts for all.

Examples are put into buckets by their length once. The sizes of a bucket are rungs of a fixed ladder, so that other
data of similar length has the same shapes, whose programs are in the cache. The examples of a bucket that do not fill a
batch move on to the next longer bucket, so the number of batches of each shape is the same in every epoch.

Shapes: N examples, B examples per batch, R rows of a text in a batch.
"""

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple

import jax
import numpy as np

from elmo_jax.data.batches import prefetched
from elmo_jax.runs.progress import Progress
from elmo_jax.tasks.core.inputs import TextEncoder
from elmo_jax.tasks.core.program import BatchArrays, Model, TaskProgram
from elmo_jax.tasks.core.setup import TaskSetup
from elmo_jax.tasks.core.task import Example, Prediction, Shape, Task

MOST_PAIRS = 2**22  # the bound on the pairs of words, which attention compares, in a batch that is not trained on


class Ladder(NamedTuple):
    """The sizes that shapes may have, and the number of buckets by default."""

    smallest: int  # the smallest number of words
    parts: int  # the number of sizes between 0 and a power of two
    buckets: int

    @classmethod
    def of(cls, mesh: jax.sharding.Mesh) -> "Ladder":
        return CPU if mesh.devices.flat[0].platform == "cpu" else ACCELERATOR

    def round_up(self, shape: Shape) -> Shape:
        return tuple((self.rung(rows, 1), self.rung(words)) for rows, words in shape)

    def rung(self, size: int, smallest: int = 0) -> int:
        """Returns the smallest size of the ladder that is at least `size`; it has no sizes below `smallest`."""
        step = max(smallest or self.smallest, (1 << (size - 1).bit_length()) // self.parts)
        return max(step, -(-size // step) * step)


CPU = Ladder(4, 16, 6)  # 4, 8, 12, …, 64, 72, 80, …, 128, 144, …: little padding
ACCELERATOR = Ladder(32, 1, 2)  # 32, 64, 128, …: compilation takes seconds per program, and padding little time


class Batch(NamedTuple):
    """The numbers of a batch's examples, and their sizes (`Task.size`)."""

    examples: tuple[int, ...]
    shape: Shape


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Examples in buckets of similar length."""

    members: tuple[np.ndarray, ...]  # the numbers of the examples of each bucket
    shapes: tuple[Shape, ...]  # the shape of each bucket; every size is at least that of the bucket before

    @classmethod
    def of(cls, sizes: Sequence[Shape], shapes: Sequence[Shape]) -> "Buckets":
        """Puts each example into the first of the shapes that it fits into; shapes without examples are left out."""
        first = _fits(sizes, shapes).argmax(0)
        used = np.unique(first).tolist()
        return cls(tuple(np.flatnonzero(first == i) for i in used), tuple(shapes[i] for i in used))

    def epoch(self, size: int | Callable[[Shape], int], rng: np.random.Generator | None) -> list[Batch]:
        """Returns the batches of an epoch in an order drawn from `rng`, or in the order of the buckets if it is None.

        The number of examples of a batch is `size`, or what `size` returns for the shape of a bucket. Examples do not
        move on to a bucket whose batches are smaller.
        """
        batches: list[Batch] = []
        waiting = np.zeros(0, np.int64)
        sizes = [size if isinstance(size, int) else size(shape) for shape in self.shapes]
        for members, shape, batch_size, after in zip(self.members, self.shapes, sizes, [*sizes[1:], 0], strict=True):
            members = np.concatenate([waiting, members if rng is None else rng.permutation(members)])
            last = after < batch_size
            whole = len(members) if last else len(members) // batch_size * batch_size
            for start in range(0, whole, batch_size):
                batches.append(Batch(tuple(members[start : start + batch_size].tolist()), shape))
            waiting = members[whole:]
        if rng is not None:
            batches = [batches[i] for i in rng.permutation(len(batches))]
        return batches


def choose_shapes(sizes: Sequence[Shape], number: int, ladder: Ladder) -> tuple[Shape, ...]:
    """Returns at most `number` ascending shapes for examples of some sizes, which all fit into the last one.

    Each bucket has the examples up to some number of words. Neighboring buckets are merged, first those two for which
    this adds the least padding.
    """
    array = np.array(sizes)  # [N, texts, 2]
    totals = array.prod(-1).sum(-1)
    counts = Counter(ladder.rung(total) for total in totals.tolist())
    bounds = sorted(counts)
    while len(bounds) > number:
        padding = [counts[low] * (high - low) for low, high in itertools.pairwise(bounds)]
        merged = int(np.argmin(padding))
        counts[bounds[merged + 1]] += counts[bounds[merged]]
        del bounds[merged]
    largest = [array[totals <= bound].max(0).tolist() for bound in bounds]
    return tuple(dict.fromkeys(map(ladder.round_up, largest)))


def with_overflow(shapes: Sequence[Shape], sizes: Sequence[Shape]) -> tuple[Shape, ...]:
    """Returns the shapes and, if some examples fit into none of them, one more for all of these."""
    left = np.array(sizes)[~_fits(sizes, shapes).any(0)]
    if not len(left):
        return tuple(shapes)
    return (*shapes, ACCELERATOR.round_up(np.max([*left, *shapes[-1:]], axis=0).tolist()))


def _fits(sizes: Sequence[Shape], shapes: Sequence[Shape]) -> np.ndarray:
    """Returns bool [shapes, N], true where an example fits into a shape."""
    array = np.array(sizes).reshape(-1, *np.shape(shapes)[1:])  # [N, texts, 2], also for N = 0
    return np.all(array <= np.array(shapes)[:, None], axis=(2, 3))


class TaskData(Generic[Example]):
    """The `examples` of one split, and the same in `buckets` of similar length."""

    def __init__(
        self,
        setup: TaskSetup[Example, Any],
        encoder: TextEncoder,
        examples: Sequence[Example],
        shapes: Sequence[Shape],
        trains: bool = False,
    ) -> None:
        train = setup.config.train
        self._task, self._labels, self._encoder, self.examples = setup.task, setup.labels, encoder, examples
        self._batch_size, self._devices, self._trains = train.batch_size, setup.devices, trains
        self._max_sentences = train.max_sentences if trains else 0
        if not trains and Ladder.of(setup.mesh) is ACCELERATOR:
            # Without the shortest bucket, since compiling its program takes longer than evaluations with more padding.
            shapes = shapes[1:] or shapes
        self.buckets = Buckets.of([size_of(setup.task, example, self._max_sentences) for example in examples], shapes)

    def epoch(self, rng: np.random.Generator | None) -> list[Batch]:
        return self.buckets.epoch(self._slots, rng)

    def _slots(self, shape: Shape) -> int:
        """Returns the number of examples of a batch: `batch_size` or, of long texts in evaluations, fewer."""
        if self._trains:
            return self._batch_size
        pairs = sum(rows * words * words for rows, words in shape[: self._task.texts_per_example])
        return max(1, min(self._batch_size, MOST_PAIRS // pairs))

    def _window(self, number: int, draw: Sequence[int] | None) -> Example:
        """Returns an example or, of a long document, the window that `draw` chooses, the first one for None."""
        example, most = self.examples[number], self._max_sentences
        rest = len(self._task.texts(example)[0]) - most
        if not most or rest <= 0:
            return example
        first = 0 if draw is None else int(np.random.default_rng([*draw, number]).integers(rest + 1))
        return self._task.window(example, first, most)

    def arrays(self, batch: Batch, draw: Sequence[int] | None = None) -> BatchArrays:
        """Returns the arrays of a batch on the host; the numbers `draw`, such as seed and epoch, choose the windows."""
        slots = -(-self._slots(batch.shape) // self._devices) * self._devices  # B
        chosen = [self._window(number, draw) for number in batch.examples]
        encoded = []
        for texts, (rows, words) in zip(zip(*map(self._task.texts, chosen), strict=True), batch.shape, strict=False):
            padded = [row for text in texts for row in (*text, *[[]] * (rows - len(text)))]
            encoded.append(self._encoder(padded, rows * slots, words))
        return BatchArrays(tuple(encoded), self._task.arrays(chosen, slots, batch.shape, self._labels))

    def batch_of_each_shape(self) -> list[BatchArrays]:
        return [self.arrays(batch) for batch in {batch.shape: batch for batch in self.epoch(None)}.values()]

    def iterate(
        self, batches: Sequence[Batch], draw: Sequence[int] | None = None, progress: Progress | None = None
    ) -> Iterator[tuple[Batch, BatchArrays]]:
        """Yields batches and their arrays, made ahead by a thread; `draw` is the seed and epoch of a training."""
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
    predictions: dict[int, Prediction] = {}
    for batch, host in data.iterate(data.epoch(None), progress=progress):
        on_devices = program.device_put(host)
        each = [jax.device_get(program.evaluate(params, on_devices, kept)[1]) for params, kept in models]
        mean = each[0] if len(each) == 1 else jax.tree.map(lambda *arrays: np.mean(arrays, axis=0), *each)
        chosen = [data.examples[number] for number in batch.examples]
        decoded = setup.task.decode(mean, chosen, setup.labels, setup.config)
        predictions |= dict(zip(batch.examples, decoded, strict=True))
    return [predictions[number] for number in range(len(data.examples))]
