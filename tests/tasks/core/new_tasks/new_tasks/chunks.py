"""A complete new tagging task: the chunks of CoNLL-2000, with a word, its part of speech and its chunk per line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp

from elmo_jax.settings import setting
from elmo_jax.tasks.core.config import TaskConfig
from elmo_jax.tasks.core.tagging import TaggedSentence, TaggingTask
from elmo_jax.tasks.core.task import Embedded, TaskOutput, Use
from elmo_jax.tasks.formats.lines import blocks, cells
from elmo_jax.tasks.layers.dense import Dense
from elmo_jax.tasks.layers.recurrent import BiLSTM
from elmo_jax.text_files import error_at


@dataclasses.dataclass(frozen=True)
class ChunkModel:
    """The size of the tagger."""

    units: int = setting(100, "The number of units per direction of the LSTM.", least=1)


class Tagger(nn.Module):
    """A biLSTM and a softmax."""

    config: ChunkModel
    labels: Sequence[str]

    @nn.compact
    def __call__(self, text: Embedded, arrays: Mapping[str, jax.Array], *, deterministic: bool = True) -> TaskOutput:
        """Computes the mean cross-entropy over words, and `probabilities` [B, T, N]."""
        hidden = BiLSTM(self.config.units, name="encoder")(text.vectors, text.mask)
        if text.output is not None:
            hidden = jnp.concatenate([hidden, text.output], axis=-1)
        scores = jax.nn.log_softmax(Dense(len(self.labels), name="tag")(hidden))
        losses = -jnp.take_along_axis(scores, arrays["tags"][..., None], axis=-1)[..., 0]
        return TaskOutput(jnp.where(text.mask, losses, 0).sum() / text.mask.sum(), {"probabilities": jnp.exp(scores)})


class Chunks(TaggingTask[TaggedSentence]):
    """Finds noun phrases and other chunks of words; a tag is that of a word in its chunk."""

    name = "chunks"
    model = ChunkModel()
    network = Tagger
    supports_ensembling = True
    spans_and_label = ("chunks", "type")
    sample = {"Sentence": "Old dogs run ."}

    def read(self, source: str, config: TaskConfig, use: Use) -> list[TaggedSentence]:
        """Reads sentences with blank lines between them."""
        examples = []
        for block in blocks(Path(source)):
            rows = [cells(line.text) for line in block]
            for line, row in zip(block, rows, strict=True):
                if len(row) != 3:
                    raise error_at(Path(source), line.number, f"expected word, part of speech and chunk, got {row}")
            examples.append(TaggedSentence([row[0] for row in rows], [row[2] for row in rows]))
        return examples


TASK = Chunks()
