"""The distinct words of a batch and their lengths, on which the work of the token encoder depends."""

from __future__ import annotations

import dataclasses

import numpy as np

from elmo_jax.characters import PADDING
from elmo_jax.config import Config
from elmo_jax.data.batches import TrainingBatches
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.windows import DistinctWords

# Measured in windows of 128 to 1,024 rows of 20 tokens in both directions (State of the Union addresses; 100 novels):
# there are 1,340 to 1,460 distinct words among 5,120 tokens, and they grow by Heaps' law with an exponent of 0.65.
_TYPICAL_TOKENS, _TYPICAL_WORDS, _HEAPS = 5_120, 1_500, 0.65
TYPICAL_POSITIONS = 16.0  # of 50 positions, for chunks of 1,024 of these words, sorted by length


@dataclasses.dataclass(frozen=True)
class BatchWords:
    """The words of one device's batch.

    Attributes:
      distinct: the number of distinct words.
      positions: the number of positions that the filters are applied to, averaged over the encoder's chunks.
      why: the source of these numbers, in words.
    """

    distinct: int
    positions: float
    why: str


def typical(config: Config, rows: int) -> BatchWords:
    """Returns the words of a typical batch of English text with `rows` rows per device."""
    tokens = 2 * config.train.unroll_steps * rows
    distinct = min(tokens, round(_TYPICAL_WORDS * (tokens / _TYPICAL_TOKENS) ** _HEAPS))
    positions = min(TYPICAL_POSITIONS, config.model.char_cnn.max_characters)
    return BatchWords(distinct, positions, "as in English text of other sources; no corpus is prepared here")


def measured(config: Config, rows: int, chunk: int, corpus: Corpus) -> BatchWords:
    """Returns the words of the first batch of a corpus.

    Args:
      config: the settings.
      rows: the rows per device.
      chunk: the number of words that are encoded at a time.
      corpus: the corpus.
    """
    spellings = corpus.spellings(config.model.char_cnn.max_characters)
    train = dataclasses.replace(config.train, batch_size=rows, negatives=0)
    batches = TrainingBatches.from_config(
        dataclasses.replace(config, train=train), corpus, DistinctWords(spellings, PADDING), rows=range(rows), devices=1
    )
    window = next(batches).window
    distinct = int(window.word_count[0])
    lengths = (spellings[window.words[:distinct]] != PADDING).sum(1)
    narrowest = min(width for width, _ in config.model.char_cnn.filters)
    most = config.model.char_cnn.max_characters - narrowest + 1
    positions = [min(int(lengths[first : first + chunk].max()) + 1, most) for first in range(0, distinct, chunk)]
    return BatchWords(distinct, float(np.mean(positions)), f"as in a batch of {corpus.path}")
