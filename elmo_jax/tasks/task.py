"""What a task supplies; everything else is the trainer's.

Shapes: B examples of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import flax.linen as nn
import numpy as np

from elmo_jax.tasks.config import TaskConfig

Example = TypeVar("Example")
Prediction = TypeVar("Prediction")
Labels = dict[str, Any]
Text = list[list[str]]
Shape = tuple[tuple[int, int], ...]


class Task(Protocol[Example, Prediction]):
    """One task: its file formats, model, scores.

    Attributes:
      name: of the task.
      config_class: its settings.
      metric: the name of the first entry of `score`, by which the best epoch is selected.
      averages: whether `decode` reads probabilities, so that those of several seeds can be averaged.
      texts_per_example: 1, or 2 for premise and hypothesis, or question and paragraph.
      rows_are_examples: whether every example has one row per text, so that a batch may be divided over devices.
    """

    name: str
    metric: str
    config_class: type[TaskConfig]
    averages: bool
    texts_per_example: int
    rows_are_examples: bool

    def read(self, source: str, config: Any, training: bool) -> list[Example]:
        """Reads annotated examples.

        Args:
          source: a path.
          config: the settings of the experiment.
          training: whether they are to be trained on; some formats give other examples then.

        Raises:
          UserError: names the file and the line.
        """

    def texts(self, example: Example) -> tuple[Text, ...]:
        """The texts of an example, each as rows of words."""

    def labels(self, train: Sequence[Example], config: Any) -> Labels:
        """What is learnt of the training examples before training, such as the set of tags; JSON values."""

    def arrays(self, examples: Sequence[Example], number: int, shape: Shape, labels: Labels) -> dict[str, np.ndarray]:
        """The arrays of a batch beside its texts.

        Args:
          examples: at most `number` of them; gold annotation may be absent.
          number: B; the places behind the examples are padding.
          shape: for each text, the rows of an example and the words of a row.
          labels: what `labels` returned.
        """

    def module(self, config: Any, labels: Labels) -> nn.Module:
        """The model: `(*embedded, arrays, deterministic=...) -> TaskOutput`."""

    def decode(
        self, predictions: dict[str, np.ndarray], examples: Sequence[Example], labels: Labels, config: Any
    ) -> list[Prediction]:
        """The predictions of some examples from the model's arrays, whose first axis is B."""

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """The official metrics, in percent; the first entry selects the best epoch."""

    def write(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> str:
        """Predictions beside gold annotation, in the task's own file format."""

    def from_words(self, texts: Sequence[Any], labels: Labels) -> list[Example]:
        """Examples without annotation, from the words of their texts, for `predict`.

        Args:
          texts: as many as `texts_per_example`, each a list of words; or, where a batch has several rows per example, a
            list of sentences.
          labels: what `labels` returned.

        Returns:
          One example; several where the task has one for each of several words, none where it has none.
        """

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """A prediction for a program to read."""

    def show(self, example: Example, prediction: Prediction) -> str:
        """A prediction for a person to read."""
