"""Implements sentiment classification as a task of the trainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from elmo_jax.errors import UserError
from elmo_jax.settings import setting
from elmo_jax.tasks.core.classification import ClassPrediction, class_predictions
from elmo_jax.tasks.core.config import TaskConfig, TaskDataConfig
from elmo_jax.tasks.core.task import Labels, NoTfds, Shape, Text, report
from elmo_jax.tasks.formats.penn import Escapes
from elmo_jax.tasks.sst.metric import metric
from elmo_jax.tasks.sst.model import BCN, SSTModel
from elmo_jax.tasks.sst.reader import LABELS, Example, Phrases, read


@dataclasses.dataclass(frozen=True)
class SSTDataConfig(TaskDataConfig):
    """The files of trees and the examples that are taken from them."""

    phrases: Phrases = setting("all", "The training examples: all phrases of the trees, or only whole sentences.")
    shortest: int = setting(
        4,
        "The least number of words of a training phrase, if data.phrases is all: 4 in the paper's supplement, 1 in"
        " AllenNLP.",
        least=1,
    )
    escapes: Escapes = setting("map", "Whether escapes such as -LRB- are replaced by their characters (map) or kept.")


@dataclasses.dataclass(frozen=True)
class SSTConfig(TaskConfig):
    """An experiment on sentiment."""

    task: str = setting("sst", "The name of the task.")
    data: SSTDataConfig = SSTDataConfig()
    model: SSTModel = SSTModel()


class SST(NoTfds):
    """Sentiment classification of sentences in five classes; implements `Task`."""

    name = "sst"
    metric = "accuracy"
    config_class: type[TaskConfig] = SSTConfig
    averages = True
    texts_per_example = 1
    rows_are_examples = True

    def read(self, source: str, config: SSTConfig, training: bool) -> list[Example]:
        """Reads a file of trees: phrases for training, whole sentences otherwise."""
        data = config.data
        if not training or data.phrases == "sentences":
            return read(Path(source), "sentences", data.escapes)
        phrases = read(Path(source), "all", data.escapes)
        found = [phrase for phrase in phrases if len(phrase.tokens) >= data.shortest]
        report(source, {f"phrases of fewer than {data.shortest} words left out": len(phrases) - len(found)})
        return found

    def texts(self, example: Example) -> tuple[Text, ...]:
        """Returns the words."""
        return ([example.tokens],)

    def labels(self, train: Sequence[Example], config: SSTConfig) -> Labels:
        """Returns the names of the classes."""
        del train, config
        return {"classes": list(LABELS)}

    def arrays(self, examples: Sequence[Example], number: int, shape: Shape, labels: Labels) -> dict[str, np.ndarray]:
        """Returns `label` int32 [B]."""
        del shape, labels
        found = np.zeros(number, np.int32)
        found[: len(examples)] = [max(example.label, 0) for example in examples]
        return {"label": found}

    def module(self, config: SSTConfig, labels: Labels) -> nn.Module:
        """Returns the biattentive classification network."""
        return BCN(config.model, len(labels["classes"]))

    def decode(
        self, predictions: dict[str, np.ndarray], examples: Sequence[Example], labels: Labels, config: SSTConfig
    ) -> list[ClassPrediction]:
        """Returns the most probable class and the probabilities of all."""
        del config
        return class_predictions(predictions["probabilities"], len(examples), labels["classes"])

    def score(self, examples: Sequence[Example], predictions: Sequence[ClassPrediction]) -> dict[str, float]:
        """Returns the accuracy."""
        return metric([example.label for example in examples], [LABELS.index(p.label) for p in predictions])

    def write(self, examples: Sequence[Example], predictions: Sequence[ClassPrediction]) -> str:
        """Returns lines of gold label (if there is one), predicted label and text, with tabs between."""
        lines = []
        for example, prediction in zip(examples, predictions, strict=True):
            gold = [str(example.label)] if example.label >= 0 else []
            text = " ".join(example.tokens)
            lines.append("\t".join([*gold, str(LABELS.index(prediction.label)), text]) + "\n")
        return "".join(lines)

    def from_words(self, texts: Sequence[list[str]], labels: Labels) -> list[Example]:
        """Returns the sentence without a label."""
        del labels
        if not texts[0]:
            raise UserError("expected a sentence with words, got an empty one")
        return [Example(texts[0], -1)]

    def as_json(self, example: Example, prediction: ClassPrediction) -> dict[str, Any]:
        """Returns `tokens`, `label` and `probabilities`."""
        return {"tokens": example.tokens, **prediction.as_json()}

    def show(self, example: Example, prediction: ClassPrediction) -> str:
        """Returns the class, its probability and the sentence."""
        return f"{prediction}  {' '.join(example.tokens)}"


TASK = SST()
