"""The sizes of the programs that compute vectors, and the positions of sentences in their rows.

Shapes: n sentences, T steps, R rows of a device, D devices, N words of a device's output, S sentences of a device whose
states are kept.

Sentences stand one after the other in the rows, the longest first, each in the row that is shortest so far. The state
is zero at the first position of a sentence, or that of the sentence's carry. The backward stream has the same sentences
at the same positions, each of them reversed, so that both directions have one mask:

    row 0   <S> the  cat  sat  </S> <S>  yes  </S>          backward   </S> sat  cat  the  <S>  </S> yes  <S>
    row 1   <S> no   dogs </S> <S>  well </S>                          </S> dogs no   <S>  </S> well <S>
"""

import heapq
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from elmo_jax.model.precision import Precision


class Shape(NamedTuple):
    """The sizes of a program."""

    rows: tuple[int, ...]  # the values of R that it can run with, ascending
    steps: int  # T

    @property
    def words(self) -> int:
        """N, the words of a device's output."""
        return self.rows[-1] * self.steps

    @property
    def sentences(self) -> int:
        """S, the sentences of a device whose states are kept."""
        return self.words // 16


class Platform(NamedTuple):
    """The programs for the devices of a platform."""

    shapes: tuple[Shape, ...]  # those of its programs, ascending
    # The time of a step that does not depend on R, in rows that take as long: with one row, and with more.
    overhead: tuple[float, float]
    # Whether one loop runs both directions and all layers, which makes few large operations; or one loop after the
    # other, with a smaller working set, and with weights multiplied from the left, as is fastest on CPUs.
    together: bool

    @classmethod
    def of(cls, mesh: Mesh, precision: Precision, one_program: bool) -> "Platform":
        """Returns the platform of a mesh's devices; with `one_program`, an accelerator has the middle one only."""
        if mesh.devices.flat[0].platform != "cpu":
            platform = ON_ACCELERATOR
        else:
            platform = ON_CPU if precision is Precision.FLOAT32 else ON_CPU._replace(overhead=_OVERHEAD_IN_BFLOAT16)
        return platform._replace(shapes=platform.shapes[1:2]) if one_program and platform.together else platform


ON_CPU = Platform((Shape((1, 4, 8), 64), Shape((16, 32), 64), Shape((64,), 256)), (2.6, 4), together=False)
_OVERHEAD_IN_BFLOAT16 = (6.5, 24)  # measured at the small published size, like that of float32
ON_ACCELERATOR = Platform((Shape((8,), 64), Shape((64,), 128), Shape((512,), 128)), (128, 128), together=True)
FILL = 0.9  # of the largest program's positions are filled by a group of sentences at most, so that they can be packed


class Packing(NamedTuple):
    """The positions of all sentences, with their boundaries, in the rows of all devices."""

    shape: Shape
    rows: int  # R, one of the shape's
    longest: int  # the positions of the longest row
    begin: np.ndarray  # [n] the position of each sentence's `<S>` in the text
    end: np.ndarray  # [n] that of its `</S>`
    number: np.ndarray  # [n] the number of each sentence on its device
    slot: np.ndarray  # [n] where the state of each sentence is kept, on all devices
    steps: np.ndarray  # [2, positions] the step of each position of the text, in each direction
    column: np.ndarray  # [positions] its row, of all devices
    is_boundary: np.ndarray  # [positions]

    def arrays(self, words: np.ndarray, steps: int, columns: int) -> tuple[np.ndarray, ...]:
        """Returns `words`, `begins`, `ends` and `mask` of the program's inputs, with `columns` rows on all devices.

        The argument `words` has the rows of `<S>`, `</S>` and all words in the table.
        """
        text = np.empty(len(self.column), np.int32)
        text[self.begin], text[self.end], text[~self.is_boundary] = words[0], words[1], words[2:]
        numbers, mask = np.zeros((len(self.steps), steps, columns), np.int32), np.zeros((steps, columns), bool)
        for of_direction, step in zip(numbers, self.steps, strict=True):
            of_direction[step, self.column] = text
        mask[self.steps[0], self.column] = True
        at_begin, at_end = np.full((2, steps, columns), -1, np.int32)
        for array, position in (at_begin, self.begin), (at_end, self.end):
            array[self.steps[0][position], self.column[position]] = self.number
        return numbers, at_begin, at_end, mask

    def index_of(
        self, kept: np.ndarray, first: int, per_call: int, devices: int
    ) -> tuple[np.ndarray | slice, list[int], np.ndarray]:
        """Selects the positions of `kept`, bool [positions], in a call of `per_call` steps from `first` on.

        Returns:
          The numbers of the selected ones among the kept; how many of them each device has; the index of the inputs.
        """
        steps, column = self.steps[:, kept] - first, self.column[kept]
        inside = (steps >= 0) & (steps < per_call)
        chosen: np.ndarray | slice = slice(None)
        if not inside.all():
            chosen = np.flatnonzero(inside.any(0))
            steps, column, inside = steps[:, chosen], column[chosen], inside[:, chosen]
        device, row = np.divmod(column, self.shape.rows[-1])
        counts, size = np.bincount(device, minlength=devices), self.shape.words
        slots = np.arange(len(column)) + (np.arange(devices) * size - (np.cumsum(counts) - counts))[device]
        index = np.full((len(steps), devices * size), size, np.int32)
        index[:, slots] = np.where(inside, steps * self.rows + row, size)
        return chosen, counts.tolist(), index


def arrange(
    lengths: np.ndarray, platform: Platform, devices: int, directions: int = 2, carried: bool = False
) -> Packing:
    """Packs sentences of `lengths` [n], with boundaries, for the program and number of rows that take the least time.

    Each of the D devices has consecutive sentences, whose states are kept if they are `carried`.
    """
    ends = np.cumsum(lengths)
    total, longest = int(ends[-1]), int(lengths.max())

    def time(choice: tuple[Shape, int]) -> float:
        shape, rows = choice
        steps = max(longest, -(-total // (rows * devices)))
        several_calls = 1.25 if steps > shape.steps else 1.0
        return steps * (rows + platform.overhead[rows > 1]) * several_calls

    shapes = [shape for shape in platform.shapes if not carried or len(lengths) <= shape.sentences]
    shape, rows = min(((shape, rows) for shape in shapes for rows in shape.rows), key=time)
    device = np.minimum((2 * ends - lengths) * devices // (2 * total), devices - 1)  # [n], ascending
    row, start, longest_row = np.zeros_like(ends), np.zeros_like(ends), 0  # [n] of the device; [n] the first position
    for d in range(devices):
        ends_of_rows = [(0, r) for r in range(rows)]  # a heap
        here = np.flatnonzero(device == d)
        for i in here[np.argsort(-lengths[here], kind="stable")].tolist():
            start[i], row[i] = ends_of_rows[0]
            heapq.heapreplace(ends_of_rows, (int(start[i] + lengths[i]), int(row[i])))
        longest_row = max(longest_row, max(ends_of_rows)[0])
    begin, positions, is_boundary = ends - lengths, np.arange(total), np.zeros(total, bool)
    is_boundary[begin] = is_boundary[ends - 1] = True
    forward = positions + np.repeat(start - begin, lengths)
    backward = np.repeat(start + ends - 1, lengths) - positions
    column = np.repeat(device * shape.rows[-1] + row, lengths)
    number = np.arange(len(lengths)) - np.searchsorted(device, device)
    slot, steps = device * shape.sentences + number, np.stack([forward, backward][:directions])
    return Packing(shape, rows, longest_row, begin, ends - 1, number, slot, steps, column, is_boundary)
