"""A task whose model gives each example one class; a new one needs a reader, a model and its settings.

Shapes: B examples per batch, C classes.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from elmo_jax.errors import UserError
from elmo_jax.tasks.core.task import Arrays, Highlighted, Labels, Shape, Task, Text
from elmo_jax.tasks.formats.scores import accuracy


@dataclasses.dataclass(frozen=True)
class ClassifiedTexts:
    """One text, or several that belong together, with a class."""

    texts: tuple[list[str], ...]  # the words of each text
    label: str  # the name of the class; empty if the texts are not annotated
    id: str = dataclasses.field(default="", compare=False, repr=False)  # its name in the file, if any


@dataclasses.dataclass(frozen=True)
class ClassPrediction:
    """The predicted class."""

    label: str  # the name of the most probable class
    probabilities: dict[str, float]  # the probability of each class by name


Examples = Sequence[ClassifiedTexts]
Predictions = Sequence[ClassPrediction]


class ClassificationTask(Task[ClassifiedTexts, ClassPrediction]):
    """The part that all classification tasks have in common; the model predicts `probabilities` [B, C].

    Attributes:
      classes: the names of the C classes.
      text_names: the name of each text.
      network: the class of the model, which takes the settings `model` and the number of classes.
    """

    metric = "accuracy"
    supports_ensembling = True
    closed_labels = True
    classes: tuple[str, ...]
    text_names: tuple[str, ...] = ("sentence",)
    network: Callable[[Any, int], nn.Module]

    def texts(self, example: ClassifiedTexts) -> tuple[Text, ...]:
        return tuple([text] for text in example.texts)

    def labels(self, train: Examples, config: Any) -> Labels:
        if (label := next((e.label for e in train if e.label not in self.classes), None)) is not None:
            raise UserError(f"config.data.train: the label {label!r}: expected one of {', '.join(self.classes)}")
        return {"classes": list(self.classes)}

    def arrays(self, examples: Examples, number: int, shape: Shape, labels: Labels) -> Arrays:
        """Returns `label` int32 [B], 0 without a known one; scores compare the labels themselves."""
        numbers = {label: i for i, label in enumerate(labels["classes"])}
        array = np.zeros(number, np.int32)
        array[: len(examples)] = [numbers.get(example.label, 0) for example in examples]
        return {"label": array}

    def unseen(self, examples: Examples, labels: Labels) -> Counter[str]:
        return Counter(e.label for e in examples if e.label and e.label not in labels["classes"])

    def module(self, config: Any, labels: Labels) -> nn.Module:
        return self.network(config.model, len(labels["classes"]))

    def decode(self, predictions: Arrays, examples: Examples, labels: Labels, config: Any) -> list[ClassPrediction]:
        classes: list[str] = labels["classes"]
        rows = predictions["probabilities"][: len(examples)]
        return [ClassPrediction(classes[row.argmax()], dict(zip(classes, row.tolist(), strict=True))) for row in rows]

    def score(self, examples: Examples, predictions: Predictions) -> dict[str, float]:
        return {"accuracy": accuracy([e.label for e in examples], [p.label for p in predictions])}

    def write(self, examples: Examples, predictions: Predictions) -> str:
        """Returns lines of gold label (if there is one), predicted label and each text, with tabs between."""
        lines = []
        for example, prediction in zip(examples, predictions, strict=True):
            classes = tuple(prediction.probabilities)
            labels = [self.written(label, classes) for label in (example.label, prediction.label) if label]
            lines.append("\t".join([*labels, *map(" ".join, example.texts)]) + "\n")
        return "".join(lines)

    def written(self, label: str, classes: Sequence[str]) -> str:
        """Returns a label as files with these classes have it."""
        return label

    def from_words(self, texts: Sequence[list[str]], labels: Labels) -> list[ClassifiedTexts]:
        if not all(texts):
            expected = " and ".join(f"a {name}" for name in self.text_names)
            raise UserError(f"expected {expected} with words, got an empty one")
        return [ClassifiedTexts(tuple(texts), "")]

    def as_json(self, example: ClassifiedTexts, prediction: ClassPrediction) -> dict[str, Any]:
        """Returns the words (`tokens`, or the name of each of several texts), `label` and `probabilities`."""
        names = ("tokens",) if self.texts_per_example == 1 else self.text_names
        probabilities = {name: round(p, 6) for name, p in prediction.probabilities.items()}
        texts = dict(zip(names, example.texts, strict=True))
        return {**texts, "label": prediction.label, "probabilities": probabilities}

    def highlight(self, prediction: dict[str, Any]) -> Highlighted:
        if "tokens" not in prediction:  # of two texts, which the page has anyway
            return [("", None)]
        label = prediction["label"]
        return [(" ".join(prediction["tokens"]), f"{label} ({prediction['probabilities'][label]:.0%})")]

    def show(self, example: ClassifiedTexts, prediction: ClassPrediction) -> str:
        probability = prediction.probabilities[prediction.label]
        return f"{prediction.label} ({probability:.0%})  {' | '.join(map(' '.join, example.texts))}"
