"""Makes batches of examples of similar length in few shapes, so that nothing is compiled after the first epoch.

Examples are put into groups by their length once. Every group has one shape. The examples of a group that do not fill a
batch move on to the next longer group, so the number of batches of each shape is the same in every epoch.

Shapes: N examples, B examples per batch.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from elmo_jax.tasks.core.task import Shape, Text

_MULTIPLE = 4  # lengths are rounded up to a multiple of this number


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch."""

    examples: tuple[int, ...]  # the numbers of its examples
    shape: Shape  # the number of rows per example and of words per row, for each text


@dataclasses.dataclass(frozen=True)
class Groups:
    """Examples in groups of similar length."""

    members: tuple[np.ndarray, ...]  # the numbers of the examples of each group
    shapes: tuple[Shape, ...]  # the shape of each group; every size is at least that of the group before

    def epoch(self, size: int | Callable[[Shape], int], rng: np.random.Generator | None) -> list[Batch]:
        """Returns the batches of an epoch in an order drawn from `rng`, or in the order of the groups if it is None.

        The number of examples of a batch is `size`, or what `size` returns for the shape of a group. Examples do not
        move on to a group whose batches are smaller.
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
            batches = [batches[place] for place in rng.permutation(len(batches))]
        return batches


def size_of(texts: Sequence[Text]) -> Shape:
    """Returns the number of rows of each text of an example, and the number of words of the longest row."""
    return tuple((len(text), max(map(len, text), default=0)) for text in texts)


def make_groups(sizes: Sequence[Shape], number: int, known: Sequence[Shape] = ()) -> Groups:
    """Puts N examples of some sizes into groups, at most `number` of which are new.

    An example takes the first of the `known` shapes, for which programs are compiled already, that it fits into; only
    examples that fit into none are put into new groups.
    """
    members: list[np.ndarray] = []
    shapes: list[Shape] = []
    left = list(range(len(sizes)))
    for shape in known:
        fits = [i for i in left if _fits(sizes[i], shape)]
        if fits:
            members.append(np.array(fits))
            shapes.append(shape)
            taken = set(fits)
            left = [i for i in left if i not in taken]
    totals = {i: sum(rows * words for rows, words in sizes[i]) for i in left}
    for bound in _bounds(np.array(list(totals.values())), number) if left else ():
        part = [i for i in left if totals[i] <= bound]
        left = [i for i in left if totals[i] > bound]
        shape = _rounded([sizes[i] for i in part], shapes[-1] if shapes else None)
        if shapes and shape == shapes[-1]:
            members[-1] = np.sort(np.concatenate([members[-1], part]))
        else:
            members.append(np.array(part))
            shapes.append(shape)
    return Groups(tuple(members), tuple(shapes))


def _bounds(totals: np.ndarray, number: int) -> list[int]:
    """Returns the largest total of each of at most `number` groups, chosen so that padding is least.

    Every example of a group takes as many places as the group's largest. The best groups up to each distinct total are
    found by dynamic programming, one more group at a time.
    """
    values, counts = np.unique(totals, return_counts=True)
    before = np.concatenate([[0], np.cumsum(counts)])  # the number of examples with smaller totals
    room = np.where(before > 0, np.inf, 0.0)  # the places of the examples before each value
    choices: list[np.ndarray] = []
    for _ in range(min(number, len(values))):
        # costs[first, end] is the number of places if one more group has the values from first to end.
        costs = room[:-1, None] + (before[1:] - before[:-1, None]) * values
        costs[np.tril_indices(len(values), -1)] = np.inf
        choices.append(np.argmin(costs, axis=0))
        room = np.concatenate([[0.0], np.min(costs, axis=0)])
    bounds: list[int] = []
    end = len(values) - 1
    for choice in reversed(choices):
        bounds.insert(0, int(values[end]))
        end = int(choice[end]) - 1
        if end < 0:
            break
    return bounds


def _fits(size: Shape, shape: Shape) -> bool:
    return all(a <= b for one, other in zip(size, shape, strict=True) for a, b in zip(one, other, strict=True))


def _rounded(sizes: Sequence[Shape], previous: Shape | None) -> Shape:
    """Returns the smallest rounded shape that all sizes and the previous shape fit into."""
    largest = np.max(np.array(sizes), axis=0)  # [texts, 2]
    words = -(-np.maximum(largest[:, 1], 1) // _MULTIPLE) * _MULTIPLE
    rows = np.maximum(largest[:, 0], 1)
    if previous is not None:
        rows = np.maximum(rows, [row for row, _ in previous])
        words = np.maximum(words, [word for _, word in previous])
    return tuple((int(row), int(word)) for row, word in zip(rows, words, strict=True))
