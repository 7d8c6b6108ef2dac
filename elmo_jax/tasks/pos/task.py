"""Implements part-of-speech tagging as a task of the trainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
import numpy as np

from elmo_jax.settings import setting
from elmo_jax.tasks.core.config import TaskConfig, TaskDataConfig
from elmo_jax.tasks.core.tagging import tag_ids, tag_rows, tag_set, tagged_line
from elmo_jax.tasks.core.task import Labels, Shape, Text
from elmo_jax.tasks.pos.metric import metric
from elmo_jax.tasks.pos.model import POSModel, SoftmaxTagger
from elmo_jax.tasks.pos.reader import Column, Example, read_conllu, read_penn

Prediction = list[str]  # one tag per word


@dataclasses.dataclass(frozen=True)
class POSDataConfig(TaskDataConfig):
    """The sources of the annotated sentences and their format."""

    format: Literal["conllu", "penn"] = setting(
        "conllu", "The format of the files: CoNLL-U, or the .pos files of the Penn Treebank."
    )
    column: Column = setting("upos", "The tags of CoNLL-U files that are used: universal or treebank-specific.")


@dataclasses.dataclass(frozen=True)
class POSConfig(TaskConfig):
    """An experiment on part-of-speech tagging."""

    task: str = setting("pos", "The name of the task.")
    data: POSDataConfig = POSDataConfig()
    model: POSModel = POSModel()


class POS:
    """Part-of-speech tagging; implements `Task`."""

    name = "pos"
    metric = "accuracy"
    config_class: type[TaskConfig] = POSConfig
    averages = True
    texts_per_example = 1
    rows_are_examples = True
    tfds_features = ("tokens", "upos", "xpos", "head")

    def read(self, source: str, config: POSConfig, training: bool) -> list[Example]:
        """Reads CoNLL-U files or `.pos` files of the Penn Treebank."""
        del training
        if config.data.format == "penn":
            return read_penn(Path(source))
        return read_conllu(Path(source), config.data.column)

    def from_tfds(
        self, source: str, features: Mapping[str, Any], records: Sequence[Mapping[str, Any]], config: POSConfig
    ) -> list[Example]:
        """Reads the treebanks of `universal_dependencies`."""
        del source
        column = config.data.column
        names = features["upos"].feature.names if column == "upos" else None
        examples = []
        for record in records:
            # TFDS keeps multiword tokens and empty nodes, which are not words and have no head.
            kept = [i for i, head in enumerate(record["head"]) if head not in (b"None", b"_")]
            tags = [names[record[column][i]] if names else record[column][i].decode() for i in kept]
            examples.append(Example([record["tokens"][i].decode() for i in kept], tags))
        return examples

    def texts(self, example: Example) -> tuple[Text, ...]:
        """Returns the words."""
        return ([example.tokens],)

    def labels(self, train: Sequence[Example], config: POSConfig) -> Labels:
        """Returns the tags of the training examples."""
        del config
        return {"tags": tag_set(example.tags for example in train)}

    def arrays(self, examples: Sequence[Example], number: int, shape: Shape, labels: Labels) -> dict[str, np.ndarray]:
        """Returns `tags` int32 [B, T]."""
        return {"tags": tag_ids([example.tags for example in examples], number, shape[0][1], labels["tags"])}

    def module(self, config: POSConfig, labels: Labels) -> nn.Module:
        """Returns the tagger."""
        return SoftmaxTagger(config.model, len(labels["tags"]))

    def decode(
        self, predictions: dict[str, np.ndarray], examples: Sequence[Example], labels: Labels, config: POSConfig
    ) -> list[Prediction]:
        """Returns the most probable tag of every word."""
        del config
        return tag_rows(predictions["probabilities"].argmax(-1), [e.tokens for e in examples], labels["tags"])

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Returns the accuracy over all words."""
        return metric([example.tags for example in examples], predictions)

    def write(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> str:
        """Returns lines of word, gold tag (if there is one) and predicted tag, with tabs between."""
        return "".join(tagged_line(e.tokens, e.tags, p) for e, p in zip(examples, predictions, strict=True))

    def from_words(self, texts: Sequence[list[str]], labels: Labels) -> list[Example]:
        """Returns the sentence without tags."""
        del labels
        return [Example(texts[0], [])]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """Returns `tokens` and `tags`."""
        return {"tokens": example.tokens, "tags": prediction}

    def show(self, example: Example, prediction: Prediction) -> str:
        """Returns the sentence as `word/TAG word/TAG …`."""
        return " ".join(f"{word}/{tag}" for word, tag in zip(example.tokens, prediction, strict=True))


TASK = POS()
