"""The interface that each task implements; `TaggingTask` and `ClassificationTask` lack the reader and the model only.

Shapes: B examples or rows per batch, T words of the longest row, D input features per word, E numbers of an ELMo mix
per word, W input features per word without ELMo.
"""

import abc
import dataclasses
import functools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import flax.linen as nn
import flax.struct
import jax
import numpy as np

from elmo_jax.errors import UserError
from elmo_jax.tasks.core.config import TaskConfig, TaskDataConfig, TaskTrainConfig

Example = TypeVar("Example")
Prediction = TypeVar("Prediction")
Labels = dict[str, Any]
Arrays = dict[str, np.ndarray]
TfdsExamples = Sequence[Mapping[str, Any]]  # the examples of a TFDS dataset, with NumPy values
Text = list[list[str]]
Shape = tuple[tuple[int, int], ...]  # numbers of rows and of words per row; see `Task.size`
Splitter = Callable[[str], list[str]]
Highlighted = list[tuple[str, str | None]]  # consecutive parts of a text, each with its label if it has one
Use = Literal["training", "evaluation", "prediction"]


@flax.struct.dataclass
class Embedded:
    """The words of a text as vectors."""

    vectors: jax.Array  # [B, T, D], the task's input: word vectors, characters and ELMo, concatenated
    mask: jax.Array  # [B, T], true on words; rows are padded at their end
    output: jax.Array | None = None  # [B, T, E], the ELMo mix that is joined to the output of the task's RNN
    words: jax.Array | None = None  # [B, T, W], `vectors` without ELMo; None if there is nothing else
    after_first: jax.Array | None = None  # [B, T, E], a mix that is joined to the output of its first layer


class TaskOutput(NamedTuple):
    """The output of a task model."""

    loss: jax.Array  # [], the loss of the batch without the penalty of the ELMo mixes
    predictions: dict[str, jax.Array]  # arrays whose first axis is B, from which `decode` makes the predictions


class Task(abc.ABC, Generic[Example, Prediction]):
    """The file formats, the model and the metrics of one task.

    Attributes:
      name: the name of the task.
      metric: the name of the first metric of `score`, which selects the best epoch.
      data: the default settings of the task's files.
      model: the default settings of its model, a frozen dataclass.
      train: the default settings of its training.
      supports_ensembling: whether `decode` reads probabilities, so that those of several seeds can be averaged.
      closed_labels: whether the dev and test examples must not have labels that the training examples lack.
      texts_per_example: 1, or 2 if an example has a premise and a hypothesis, or a question and a paragraph.
      document_level: whether the examples are documents, for which the task has `window`; otherwise every example has
        one row per text, so that a batch can be divided over devices.
      ids_are_keys: whether predictions are written by the ids of examples, of which no two may then be equal.
      has_after_first: whether its model takes ELMo after its first layer (`Embedded.after_first`).
      sample: the names of the fields of `elmo-jax demo`, one per text, with the English text that is in each at first.
      tfds_features: the features that `from_tfds` reads; empty if TFDS has no dataset of the task.
    """

    name: str
    metric: str
    data = TaskDataConfig()
    model: Any
    train = TaskTrainConfig()
    supports_ensembling = False
    closed_labels = False
    texts_per_example = 1
    document_level = False
    ids_are_keys = False
    has_after_first = False
    sample: Mapping[str, str] = {}
    tfds_features: tuple[str, ...] = ()

    @functools.cached_property
    def config_class(self) -> type[TaskConfig]:
        """The settings of the task's experiments: those of all tasks with its own `data`, `model` and `train`."""
        own = [(name, type(getattr(self, name)), getattr(self, name)) for name in ("data", "model", "train")]
        return dataclasses.make_dataclass(f"{type(self).__name__}Config", own, bases=(TaskConfig,), frozen=True)

    @abc.abstractmethod
    def read(self, source: str, config: Any, use: Use) -> list[Example]:
        """Reads examples from a file.

        Args:
          source: the path.
          config: the settings of the experiment.
          use: what the examples are for. For "training", some tasks read other examples from the same file; for
            "prediction", the annotation may be missing.

        Raises:
          UserError: the file is malformed; the message names the file and the line.
        """

    def splitter(self, config: Any) -> Splitter | None:
        """Returns what splits a text into words as in training; None if running text is split into sentences first."""
        return None

    def from_tfds(self, source: str, features: Any, records: TfdsExamples, config: Any) -> list[Example]:
        """Returns the examples in the `records` of a split of a TFDS dataset with some `features`."""
        raise UserError(f"{source}: no TFDS dataset has examples of the task {self.name}; give files")

    @abc.abstractmethod
    def texts(self, example: Example) -> tuple[Text, ...]:
        """Returns the texts of an example, each as rows of words."""

    def size(self, example: Example) -> Shape:
        """Returns the sizes that determine the bucket of an example, and so the shape of its arrays.

        They are the number of rows and of words of the longest row of each text; a task may add others.
        """
        return tuple((len(text), max(map(len, text), default=0)) for text in self.texts(example))

    def labels(self, train: Sequence[Example], config: Any) -> Labels:
        """Returns what the model must know about the training examples, such as the set of tags, as JSON values."""
        return {}

    def unseen(self, examples: Sequence[Example], labels: Labels) -> Counter[str]:
        """Returns the labels in the gold annotation that the training examples lack, so that no prediction has them."""
        return Counter()

    @abc.abstractmethod
    def arrays(self, examples: Sequence[Example], number: int, shape: Shape, labels: Labels) -> Arrays:
        """Returns the arrays of a batch other than those of its texts.

        Args:
          examples: at most `number` examples, which may lack gold annotation.
          number: B; what follows the examples is padding.
          shape: the sizes of the bucket, at least those of each example (`size`).
          labels: the result of `labels`.
        """

    @abc.abstractmethod
    def module(self, config: Any, labels: Labels) -> nn.Module:
        """Returns the model, a module `(*embedded, arrays, deterministic=...) -> TaskOutput`."""

    @abc.abstractmethod
    def decode(self, predictions: Arrays, examples: Sequence[Example], labels: Labels, config: Any) -> list[Prediction]:
        """Returns the predictions of some examples from the model's arrays, whose first axis is B."""

    @abc.abstractmethod
    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Returns the official metrics in percent; the first one selects the best epoch."""

    @abc.abstractmethod
    def write(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> str:
        """Returns the predictions, with the gold annotation if there is one, in the task's own file format."""

    @abc.abstractmethod
    def from_words(self, texts: Sequence[Any], labels: Labels) -> list[Example]:
        """Returns the example of some texts, without annotation, for `predict`; for semantic roles, one per predicate.

        The `texts_per_example` texts are lists of words or, if `document_level` is true, of sentences.
        """

    def overlooked(self, texts: Sequence[list[str]], labels: Labels) -> list[str]:
        """Returns the words in some sentences of which `from_words` cannot know whether they need a prediction."""
        return []

    @abc.abstractmethod
    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """Returns a prediction for a program to read."""

    @abc.abstractmethod
    def show(self, example: Example, prediction: Prediction) -> str:
        """Returns a prediction for a person to read."""

    def highlight(self, prediction: dict[str, Any]) -> Highlighted:
        """Returns the text of a result of `as_json` in parts with labels, for `elmo-jax demo`."""
        return [(json.dumps(prediction, ensure_ascii=False), None)]

    def window(self, example: Example, first: int, sentences: int) -> Example:
        """Returns the part of a document that begins at the sentence `first` and has a number of sentences."""
        raise NotImplementedError(f"examples of the task {self.name} are not documents")


def repeated_id(examples: Iterable[Any]) -> str | None:
    """Returns an id that two examples have, or None; an example without an id, or with an empty one, is left out."""
    counts = Counter(getattr(example, "id", "") for example in examples)
    return next((name for name, number in counts.items() if name and number > 1), None)


def report(source: object, counts: Mapping[str, int]) -> None:
    """Prints on standard error what a reader left out of a source or changed in it, by number; nothing for 0."""
    for what, number in counts.items():
        if number:
            print(f"elmo-jax: {source}: {what}: {number:,}", file=sys.stderr)
