"""What a task's training and the use of a trained task have in common, and how it is made from an experiment."""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic

import jax
import numpy as np
from etils import epath

from elmo_jax import files
from elmo_jax.embedding.bilm import EmbeddingBiLM, load_bilm
from elmo_jax.errors import UserError
from elmo_jax.tasks.core.config import TaskConfig
from elmo_jax.tasks.core.task import Example, Labels, Prediction, Shape, Task, report
from elmo_jax.tasks.core.vocabulary import Vocabulary, WordTable

SPLITS = ("train", "dev", "test")
# By name, functions that open what takes the place of a biLM in a comparison; None for the path of something else.
OTHER_MODELS: dict[str, Callable[[str], Any]] = {}
ADVICE = "restore it, or train the task again in another --workdir"
_ORDER_SEED = 0  # the seed of the order in which training examples enter the shares


@dataclasses.dataclass(frozen=True)
class TaskSetup(Generic[Example, Prediction]):
    """What the inputs, the batches and the programs of a task are made from."""

    task: Task[Example, Prediction]
    config: TaskConfig  # the experiment, of the task's own class
    labels: Labels  # the result of `Task.labels`
    vocabulary: Vocabulary  # the words and characters that have vectors
    table: WordTable  # the initial word vectors
    bilm: EmbeddingBiLM | None  # the frozen biLM; None if the experiment has none
    mesh: jax.sharding.Mesh  # the devices

    @property
    def devices(self) -> int:
        return 1 if self.task.document_level else self.mesh.size

    def save(self, workdir: epath.Path, shapes: Sequence[Shape]) -> None:
        """Writes what `load_task` reads: the labels, the vocabulary, the word vectors and the shapes of the batches."""
        inputs = {"labels": self.labels, "vocabulary": self.vocabulary.as_dict(), "shapes": shapes}
        files.write_checksummed_json(workdir / "inputs.json", inputs)
        with files.atomic_file(workdir / "words.npz") as temporary, temporary.open("wb") as file:
            np.savez(file, vectors=self.table.vectors, random=self.table.random, spread=self.table.spread)


def shapes_in(inputs: dict[str, Any]) -> tuple[Shape, ...]:
    """Returns the shapes in the content of `inputs.json`."""
    return tuple(tuple((rows, words) for rows, words in shape) for shape in inputs["shapes"])


def open_model(config: TaskConfig) -> EmbeddingBiLM | None:
    """Returns the biLM of an experiment, which must have the layer that it names; None if it has none."""
    if not config.bilm:
        return None
    others = (open_other(config.bilm) for open_other in OTHER_MODELS.values())
    bilm = next((other for other in others if other is not None), None)
    if bilm is None:
        bilm = load_bilm((config.bilm_options, config.bilm) if config.bilm_options else config.bilm)
        bilm = dataclasses.replace(bilm, one_program=True)
    layers = bilm.config.lstm.layers
    if config.elmo.layers.isdecimal() and not 1 <= int(config.elmo.layers) <= layers:
        expected = f"1 to {layers}, the LSTM layers of the biLM"
        raise UserError(f"config.elmo.layers: expected {expected}, got {config.elmo.layers}")
    return bilm


def training_share(examples: Sequence[Any], config: TaskConfig) -> list[Any]:
    """Returns the share of training examples that is used, in their order; a smaller one is part of a larger one."""
    number = max(1, round(config.data.train_fraction * len(examples)))
    order = np.random.default_rng(_ORDER_SEED).permutation(len(examples))
    return [examples[i] for i in sorted(order[:number].tolist())]


def check_labels(
    task: Task[Any, Any], examples: Sequence[Any], labels: Labels, source: str, refuse: bool = False
) -> None:
    """Reports on stderr the labels of examples that are not among those of the training, which count as errors.

    With `refuse`, they are refused, but with open `labels` only if there are more of them than others.
    """
    if unseen := task.unseen(examples, labels):
        most = ", ".join(f"{label!r} ({number:,})" for label, number in unseen.most_common(5))
        message = f"{source}: {unseen.total():,} labels that the training examples do not have: {most}"
        every = task.unseen(examples, dict.fromkeys(labels, ()))
        if refuse and (task.closed_labels or 2 * unseen.total() > every.total()):
            raise UserError(f"{message}; correct the file, or add examples of them to config.data.train")
        print(f"elmo-jax: {message}; each counts as an error", file=sys.stderr)


def short_enough(task: Task[Any, Any], examples: Sequence[Any], config: TaskConfig) -> list[Any]:
    """Returns the training examples whose texts have at most `max_length` words each; all examples if that is 0."""
    most = config.train.max_length
    kept = [e for e in examples if not most or all(sum(map(len, text)) <= most for text in task.texts(e))]
    if not kept:
        raise UserError(f"config.train.max_length: no training example has at most {most} words")
    left_out = len(examples) - len(kept)
    report("config.train.max_length", {f"training examples of more than {most} words left out": left_out})
    return kept


def rows_of(task: Task[Any, Any], examples: Sequence[Any]) -> Iterator[list[str]]:
    """Yields all rows of all texts of some examples."""
    return (row for example in examples for text in task.texts(example) for row in text)
