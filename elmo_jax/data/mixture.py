"""Mixes the named sources of a corpus: how many blocks of each an epoch reads, and in which order.

The weight of a source is how often an epoch reads each of its blocks, on average. So a weight multiplies the natural
share of a source: with 2.0 it is read twice as often as a source of weight 1, whatever the sizes of both are, and if
all weights are 1, an epoch reads the text once. (Weights that are shares of an epoch instead would have to be chosen
again whenever a source grows, and would not say how often a small source is repeated.)
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import grain
import numpy as np

from elmo_jax.data.corpus import Corpus
from elmo_jax.data.windows import BlockSource
from elmo_jax.errors import UserError

Mixture = Sequence[tuple[str, float]]  # the names of sources, and their weights


class Portion(NamedTuple):
    """The part that a source has in each epoch."""

    blocks: range  # its blocks among those of the split
    number: int  # the number of blocks that an epoch reads; those that it leaves out come first in the next epoch
    tokens: float  # the number of tokens of these blocks, on average


def portions(corpus: Corpus, mixture: Mixture) -> list[Portion]:
    """Returns the portions of the sources in an epoch of the training text.

    A source that the mixture does not name has the weight 1. The number of blocks is rounded, and is at least one
    unless the weight is 0, with which a source is left out. Raises `UserError` if the mixture names a source that the
    training text does not have, or leaves nothing to read.
    """
    sources, weights = corpus.sources("train"), dict(mixture)
    names = [source["name"] for source in sources]
    for name in weights:
        if name not in names:
            known = f"has the sources {', '.join(names)}" if names else "was prepared without names (NAME=SOURCE)"
            raise UserError(f"config.data.mixture: no source {name!r}; the training text of {corpus.path} {known}")
    portions, first = [], 0
    for source in sources:
        blocks, weight = range(first, first + source["blocks"]), weights.get(source["name"], 1.0)
        first = blocks.stop
        if weight:
            number = max(1, round(weight * len(blocks)))
            portions.append(Portion(blocks, number, number * source["tokens"] / len(blocks)))
    if not portions:
        raise UserError("config.data.mixture: every source has the weight 0; expected one that is above 0")
    return portions


def epoch_tokens(corpus: Corpus, mixture: Mixture) -> int:
    """Returns the number of training tokens of one direction in an epoch; see `portions`."""
    if not mixture:
        return corpus.tokens("train")
    return round(sum(portion.tokens for portion in portions(corpus, mixture)))


class MixedBlocks:
    """The endless sequence of the blocks that a mixture reads, with random access.

    Each epoch reads the portions of all sources in a different order. Each source is read to its end, in random
    order, before any of its blocks comes again.
    """

    def __init__(self, blocks: BlockSource, mixed: Sequence[Portion], seed: int) -> None:
        text: Any = grain.MapDataset.source(blocks).seed(seed)
        self._sources = [text[p.blocks.start : p.blocks.stop].shuffle().repeat() for p in mixed]
        self._numbers = [portion.number for portion in mixed]
        self._starts = np.cumsum([0, *self._numbers])
        self._epoch = int(self._starts[-1])
        self._indices: Any = grain.MapDataset.range(self._epoch).seed(seed).shuffle().repeat()

    def __getitem__(self, index: int) -> np.ndarray:
        """Returns block `index` of the sequence, from 0: int32 `[tokens]`."""
        block = self._indices[index]
        source = int(np.searchsorted(self._starts, block, "right")) - 1
        earlier = index // self._epoch * self._numbers[source]  # blocks of this source in earlier epochs
        return self._sources[source][earlier + block - int(self._starts[source])]
