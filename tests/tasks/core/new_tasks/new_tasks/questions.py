"""A complete new classification task: the types of questions of TREC, with the type before each question."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp

from elmo_jax.settings import setting
from elmo_jax.tasks.core.classification import ClassificationTask, ClassifiedTexts
from elmo_jax.tasks.core.config import TaskConfig
from elmo_jax.tasks.core.task import Embedded, TaskOutput, Use
from elmo_jax.tasks.layers.dense import Dense, masked_max, mean_cross_entropy
from elmo_jax.text_files import error_at, read_lines
from elmo_jax.words import split_words


@dataclasses.dataclass(frozen=True)
class QuestionModel:
    """The size of the classifier."""

    units: int = setting(100, "The number of units of the dense layer.", least=1)


class Classifier(nn.Module):
    """A dense layer, a maximum over the words, and a softmax."""

    config: QuestionModel
    classes: int

    @nn.compact
    def __call__(self, text: Embedded, arrays: Mapping[str, jax.Array], *, deterministic: bool = True) -> TaskOutput:
        """Computes the mean cross-entropy over the questions, and `probabilities` [B, C]."""
        hidden = jnp.tanh(Dense(self.config.units, name="hidden")(text.vectors))
        logits = Dense(self.classes, name="output")(masked_max(hidden, text.mask))
        loss = mean_cross_entropy(logits, arrays["label"], text.mask.any(1))
        return TaskOutput(loss, {"probabilities": jax.nn.softmax(logits)})


class Questions(ClassificationTask):
    """The type of answer that a question asks for."""

    name = "questions"
    model = QuestionModel()
    network = Classifier
    classes = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")

    def read(self, source: str, config: TaskConfig, use: Use) -> list[ClassifiedTexts]:
        """Reads lines such as `NUM:date When did Ada live ?`."""
        examples = []
        for line in read_lines(Path(source)):
            kind, *words = split_words(line.text)
            label = kind.split(":")[0]
            if label not in self.classes or not words:
                raise error_at(Path(source), line.number, f"expected a type and a question, got {line.text!r}")
            examples.append(ClassifiedTexts((words,), label))
        return examples


TASK = Questions()
