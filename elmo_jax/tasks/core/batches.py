"""Makes batches of examples of similar length in a few shapes, so that few programs are compiled.

Examples are put into buckets by their length once. The sizes of a bucket are rungs of a fixed ladder, so that other
data of similar length has the same shapes, whose programs are in the cache. The examples of a bucket that do not fill a
batch move on to the next longer bucket, so the number of batches of each shape is the same in every epoch.

Shapes: N examples, B examples per batch.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from elmo_jax.tasks.core.task import Shape


class Ladder(NamedTuple):
    """The sizes that shapes may have, and the number of buckets by default."""

    smallest: int  # the smallest number of words
    parts: int  # the number of sizes between 0 and a power of two
    buckets: int

    @classmethod
    def of(cls, mesh: jax.sharding.Mesh) -> "Ladder":
        """Returns the ladder for the devices of a mesh."""
        return CPU if mesh.devices.flat[0].platform == "cpu" else ACCELERATOR

    def round_up(self, shape: Shape) -> Shape:
        """Returns the smallest shape of the ladder that a shape fits into."""
        return tuple((self.rung(rows, 1), self.rung(words)) for rows, words in shape)

    def rung(self, size: int, smallest: int = 0) -> int:
        """Returns the smallest size of the ladder that is at least `size`; it has no sizes below `smallest`."""
        step = max(smallest or self.smallest, (1 << (size - 1).bit_length()) // self.parts)
        return max(step, -(-size // step) * step)


CPU = Ladder(4, 16, 6)  # 4, 8, 12, …, 64, 72, 80, …, 128, 144, …: little padding
ACCELERATOR = Ladder(32, 1, 2)  # 32, 64, 128, …: compilation takes seconds per program, and padding little time


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch."""

    examples: tuple[int, ...]  # the numbers of its examples
    shape: Shape  # the sizes of its examples; see `Task.size`


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Examples in buckets of similar length."""

    members: tuple[np.ndarray, ...]  # the numbers of the examples of each bucket
    shapes: tuple[Shape, ...]  # the shape of each bucket; every size is at least that of the bucket before

    @classmethod
    def of(cls, sizes: Sequence[Shape], shapes: Sequence[Shape]) -> "Buckets":
        """Puts each example into the first of the shapes that it fits into; shapes without examples are left out."""
        first = _fits(sizes, shapes).argmax(0) if len(sizes) else np.zeros(0, int)
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
    left = np.array(sizes)[~_fits(sizes, shapes).any(0)] if len(sizes) else ()
    if not len(left):
        return tuple(shapes)
    return (*shapes, ACCELERATOR.round_up(np.max([*left, *shapes[-1:]], axis=0).tolist()))


def _fits(sizes: Sequence[Shape], shapes: Sequence[Shape]) -> np.ndarray:
    """Returns bool [shapes, N], true where an example fits into a shape."""
    return np.all(np.array(sizes) <= np.array(shapes)[:, None], axis=(2, 3))
