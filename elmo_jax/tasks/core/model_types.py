"""Declares the input and the output of a task model.

Shapes: B rows, T words of the longest row, D numbers of input per word, E numbers of an ELMo mix per word, W numbers of
input per word without ELMo.
"""

from typing import NamedTuple

import flax.struct
import jax


@flax.struct.dataclass
class Embedded:
    """The words of a text as vectors."""

    # [B, T, D], the input of the task's lowest layer: word vectors, characters and ELMo, concatenated
    vectors: jax.Array
    mask: jax.Array  # [B, T], true on words; rows are padded at their end
    # [B, T, E], the ELMo mix that is joined to the output of the task's RNN; None if there is none
    output: jax.Array | None = None
    words: jax.Array | None = None  # [B, T, W], `vectors` without ELMo; None if there is nothing else


class TaskOutput(NamedTuple):
    """The output of a task model."""

    loss: jax.Array  # [], the loss of the batch without the penalty of the ELMo mixes
    # arrays whose first axis is B, from which the host makes the predictions of the examples
    predictions: dict[str, jax.Array]
