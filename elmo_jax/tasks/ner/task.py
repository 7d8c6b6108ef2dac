"""Implements named entity recognition as a task of the trainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from elmo_jax.errors import UserError
from elmo_jax.settings import setting
from elmo_jax.tasks.core.config import TaskConfig, TaskDataConfig
from elmo_jax.tasks.core.tagging import tag_ids, tag_rows, tagged_line
from elmo_jax.tasks.core.task import Labels, Shape, Text
from elmo_jax.tasks.formats.tags import Scheme, TagError, bio_to_iob1, bioul_to_bio, spans, to_bio, to_bioul
from elmo_jax.tasks.ner.metric import metric
from elmo_jax.tasks.ner.model import NERModel, Tagger
from elmo_jax.tasks.ner.reader import EmptyWords, Example, read

Prediction = list[str]  # a BIO tag per word


@dataclasses.dataclass(frozen=True)
class NERDataConfig(TaskDataConfig):
    """The sources of the annotated sentences and their notation."""

    scheme: Scheme = setting(
        "iob1",
        "The notation of the tags in files: iob1 for CoNLL-2003 as published, bio for WNUT-17, bioul (also called"
        " BILOU) or bioes.",
    )
    empty_words: EmptyWords = setting("error", "Whether a line whose word is empty is an error or skipped.")


@dataclasses.dataclass(frozen=True)
class NERConfig(TaskConfig):
    """An experiment on named entities."""

    task: str = setting("ner", "The name of the task.")
    data: NERDataConfig = NERDataConfig()
    model: NERModel = NERModel()


class NER:
    """Named entity recognition; implements `Task`."""

    name = "ner"
    metric = "f1"
    config_class: type[TaskConfig] = NERConfig
    averages = False  # the CRF decodes whole sentences
    texts_per_example = 1
    rows_are_examples = True
    tfds_features = ("tokens", "ner")

    def read(self, source: str, config: NERConfig, training: bool) -> list[Example]:
        """Reads files with one word and its tag per line."""
        del training
        return read(Path(source), config.data.scheme, config.data.empty_words)

    def from_tfds(
        self, source: str, features: Mapping[str, Any], records: Sequence[Mapping[str, Any]], config: NERConfig
    ) -> list[Example]:
        """Reads datasets in the form of `conll2003`."""
        names = features["ner"].feature.names
        found = []
        for number, record in enumerate(records):
            try:
                tags = to_bio([names[tag] for tag in record["ner"]], config.data.scheme)
            except TagError as error:
                raise UserError(
                    f"{source}, example {number}, word {error.position}: {error.reason}; set config.data.scheme, which"
                    f" is {config.data.scheme}, to the notation of the dataset"
                ) from None
            found.append(Example([token.decode() for token in record["tokens"]], tags))
        return found

    def texts(self, example: Example) -> tuple[Text, ...]:
        """Returns the words."""
        return ([example.tokens],)

    def labels(self, train: Sequence[Example], config: NERConfig) -> Labels:
        """Returns all tags, in the model's encoding, of the entity types in the training examples."""
        types = sorted({span.label for example in train for span in spans(example.tags)})
        marks = "BIUL" if config.model.encoding == "BIOUL" else "BI"
        tags = ["O", *(f"{mark}-{label}" for label in types for mark in marks)]
        return {"tags": tags, "encoding": config.model.encoding}

    def arrays(self, examples: Sequence[Example], number: int, shape: Shape, labels: Labels) -> dict[str, np.ndarray]:
        """Returns `tags` int32 [B, T], in the model's encoding."""
        gold = [_encoded(e.tags, labels["encoding"]) for e in examples]
        return {"tags": tag_ids(gold, number, shape[0][1], labels["tags"])}

    def module(self, config: NERConfig, labels: Labels) -> nn.Module:
        """Returns the tagger."""
        return Tagger(config.model, tuple(labels["tags"]))

    def decode(
        self, predictions: dict[str, np.ndarray], examples: Sequence[Example], labels: Labels, config: NERConfig
    ) -> list[Prediction]:
        """Returns the best tags, in BIO."""
        del config
        found = tag_rows(predictions["tags"], [e.tokens for e in examples], labels["tags"])
        return [_decoded(tags, labels["encoding"]) for tags in found]

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Returns the scores of conlleval: F1 over all types first."""
        return metric([example.tags for example in examples], predictions)

    def write(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> str:
        """Returns lines for `conlleval -d '\\t'`: the word, the gold tag if there is one, and the predicted tag."""
        return "".join(tagged_line(e.tokens, e.tags, p) for e, p in zip(examples, predictions, strict=True))

    def from_words(self, texts: Sequence[list[str]], labels: Labels) -> list[Example]:
        """Returns the sentence without tags."""
        del labels
        return [Example(texts[0], [])]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """Returns `tokens`, `tags` and `entities`; an entity consists of the words `start` to before `end`."""
        entities = [
            {"type": label, "text": " ".join(example.tokens[start : end + 1]), "start": start, "end": end + 1}
            for label, start, end in spans(prediction)
        ]
        return {"tokens": example.tokens, "tags": prediction, "entities": entities}

    def show(self, example: Example, prediction: Prediction) -> str:
        """Returns the sentence with its entities in brackets, as in `[PER Ada Lovelace] wrote …`."""
        words = list(example.tokens)
        for label, start, end in spans(prediction):
            words[start] = f"[{label} {words[start]}"
            words[end] += "]"
        return " ".join(words)


def _encoded(tags: Sequence[str], encoding: str) -> list[str]:
    """Returns BIO tags in an encoding of the model."""
    if encoding == "BIOUL":
        return to_bioul(tags, "bio")
    return bio_to_iob1(tags) if encoding == "IOB1" else list(tags)


def _decoded(tags: Sequence[str], encoding: str) -> list[str]:
    """Returns tags in an encoding of the model as BIO tags."""
    if encoding == "BIOUL":
        return bioul_to_bio(tags)
    return to_bio(tags, "iob1") if encoding == "IOB1" else list(tags)


TASK = NER()
