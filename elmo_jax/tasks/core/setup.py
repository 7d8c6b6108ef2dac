"""Chooses the examples of a task's training, opens its biLM and builds its program.

Training and the use of a trained task share these steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from elmo_jax import files
from elmo_jax.embedding.bilm import EmbeddingBiLM, load_bilm
from elmo_jax.errors import UserError
from elmo_jax.tasks.core import elmo_vectors, vocabulary
from elmo_jax.tasks.core.config import TaskConfig
from elmo_jax.tasks.core.elmo_vectors import Layers
from elmo_jax.tasks.core.inputs import InputSettings
from elmo_jax.tasks.core.program import TaskProgram
from elmo_jax.tasks.core.task import Labels, Shape, Task, report
from elmo_jax.tasks.core.vocabulary import Vocabulary, WordTable

SPLITS = ("train", "dev", "test")
_ORDER_SEED = 0  # the seed of the order in which training examples enter the shares


def open_model(config: TaskConfig) -> EmbeddingBiLM | None:
    """Returns the biLM of an experiment; None if it has none.

    Raises:
      UserError: there is no such biLM, or it lacks the layer that the experiment names.
    """
    if not config.bilm:
        return None
    bilm = load_bilm((config.bilm_options, config.bilm) if config.bilm_options else config.bilm)
    layers = bilm.config.lstm.layers
    if config.elmo.layers.isdecimal() and not 1 <= int(config.elmo.layers) <= layers:
        raise UserError(
            f"config.elmo.layers: expected 1 to {layers}, the LSTM layers of the biLM, got {config.elmo.layers}"
        )
    return bilm


def training_share(examples: Sequence[Any], config: TaskConfig) -> list[Any]:
    """Returns the share of the training examples that is used, in their order.

    A smaller share is always a part of a larger one.
    """
    number = max(1, round(config.data.train_fraction * len(examples)))
    order = np.random.default_rng(_ORDER_SEED).permutation(len(examples))
    return [examples[place] for place in sorted(order[:number].tolist())]


def short_enough(task: Task[Any, Any], examples: Sequence[Any], config: TaskConfig) -> list[Any]:
    """Returns the training examples whose texts have at most `max_length` words each; all examples if that is 0.

    Raises:
      UserError: no example is short enough.
    """
    most = config.train.max_length
    found = [e for e in examples if not most or all(sum(map(len, text)) <= most for text in task.texts(e))]
    if not found:
        raise UserError(f"config.train.max_length: no training example has at most {most} words")
    report(
        "config.train.max_length", {f"training examples of more than {most} words left out": len(examples) - len(found)}
    )
    return found


def rows_of(task: Task[Any, Any], examples: Sequence[Any]) -> Iterator[list[str]]:
    """Yields all rows of all texts of some examples."""
    return (row for example in examples for text in task.texts(example) for row in text)


def words_of(task: Task[Any, Any], config: TaskConfig, splits: dict[str, list[Any]]) -> tuple[Vocabulary, WordTable]:
    """Returns the vocabulary of the training examples that are used, and the initial vectors of its words."""
    train = rows_of(task, training_share(splits["train"], config))
    others = [row for name in ("dev", "test") for row in rows_of(task, splits[name])]
    return vocabulary.build(train, others, config.word_vectors, config.characters)


def layers_of(
    task: Task[Any, Any],
    config: TaskConfig,
    bilm: EmbeddingBiLM | None,
    splits: dict[str, list[Any]],
    workdir: epath.Path,
) -> Layers | None:
    """Returns the frozen layers of all examples, in one file per split; None if each step computes them."""
    if bilm is None or config.elmo.vectors == "computed":
        return None
    folder = files.local(config.elmo.cache or workdir / "elmo")
    dtype = config.elmo.dtype
    return Layers(
        [elmo_vectors.make(folder, bilm, rows_of(task, splits[name]), dtype) for name in SPLITS if splits[name]]
    )


def make_program(
    task: Task[Any, Any],
    config: TaskConfig,
    labels: Labels,
    words: Vocabulary,
    table: WordTable,
    bilm: EmbeddingBiLM | None,
    mesh: jax.sharding.Mesh,
) -> TaskProgram:
    """Returns the training step and the evaluation of a task."""
    settings = InputSettings(
        word_rows=words.word_rows,
        word_dim=table.vectors.shape[1],
        words_trainable=config.word_vectors.trainable,
        character_rows=words.character_rows,
        characters=config.characters,
        bilm=bilm.config if bilm else None,
        elmo=config.elmo,
    )
    return TaskProgram(config, settings, task.module(config, labels), mesh, task.rows_are_examples)


def save_inputs(
    workdir: epath.Path, labels: Labels, words: Vocabulary, table: WordTable, shapes: Sequence[Shape]
) -> None:
    """Writes the labels, the vocabulary, the shapes of the training batches (`inputs.json`) and the word vectors."""
    inputs = {"labels": labels, "vocabulary": words.as_dict(), "shapes": shapes}
    files.write_sealed_json(workdir / "inputs.json", inputs)
    with files.atomic_file(workdir / "words.npz") as temporary, temporary.open("wb") as file:
        np.savez(file, vectors=table.vectors, random=table.random, spread=table.spread)
