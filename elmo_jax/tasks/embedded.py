"""What a task model is given of a text, and what it gives back.

Shapes: B rows, T words of the longest row, D numbers of a word's input, E numbers of an ELMo mix, W numbers of a word's
vectors without ELMo.
"""

from __future__ import annotations

from typing import NamedTuple

import flax.struct
import jax


@flax.struct.dataclass
class Embedded:
    """The words of a text as vectors.

    Attributes:
      vectors: [B, T, D], the input of the task's lowest layer: word vectors, characters and ELMo, side by side.
      mask: [B, T], true on words; rows are padded at their end.
      output: [B, T, E], the ELMo mix that enters behind the task's RNN; None without one.
      words: [B, T, W], `vectors` without ELMo.
    """

    vectors: jax.Array
    mask: jax.Array
    output: jax.Array | None = None
    words: jax.Array | None = None


class TaskOutput(NamedTuple):
    """What a task model returns.

    Attributes:
      loss: [], of the batch; without the penalty of the ELMo mixes.
      predictions: arrays with B as their first axis, on the host to be turned into predictions of examples.
    """

    loss: jax.Array
    predictions: dict[str, jax.Array]
