"""What a batch of text is like, for programs whose work depends on it: its distinct words and how long they are."""

from __future__ import annotations

import dataclasses

import numpy as np

from elmo_jax.characters import PADDING
from elmo_jax.config import Config
from elmo_jax.data.batches import DistinctWords, TrainingBatches
from elmo_jax.data.corpus import Corpus

# Of windows of 128 to 1,024 rows of 20 tokens in both directions (State of the Union addresses; 100 novels): 1,340 to
# 1,460 distinct words among 5,120, growing as Heaps' law says, with an exponent of 0.65
_TYPICAL_TOKENS, _TYPICAL_WORDS, _HEAPS = 5_120, 1_500, 0.65
TYPICAL_POSITIONS = 16.0  # of 50 that the filters are put on, for chunks of 1,024 of these, the short words first


@dataclasses.dataclass(frozen=True)
class BatchWords:
    """Of one device's batch."""

    distinct: int
    positions: float  # that the filters are put on, averaged over the encoder's chunks
    why: str


def typical(config: Config, rows: int) -> BatchWords:
    """As seen in English text; `rows` are those of one device."""
    tokens = 2 * config.train.unroll_steps * rows
    distinct = min(tokens, round(_TYPICAL_WORDS * (tokens / _TYPICAL_TOKENS) ** _HEAPS))
    positions = min(TYPICAL_POSITIONS, config.model.char_cnn.max_characters)
    return BatchWords(distinct, positions, "as in English text of other sources; no corpus is prepared here")


def measured(config: Config, rows: int, chunk: int, corpus: Corpus) -> BatchWords:
    """As in the corpus's first batch; `rows` are those of one device, `chunk` the words encoded at a time."""
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
