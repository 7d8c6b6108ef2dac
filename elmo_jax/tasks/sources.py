"""Where the examples of a task come from: files, or a split of a TFDS data set."""

from __future__ import annotations

from typing import Any

from elmo_jax.errors import UserError
from elmo_jax.tasks.config import TaskConfig
from elmo_jax.tasks.task import Task


def read_split(task: Task[Any, Any], config: TaskConfig, name: str) -> list[Any]:
    """The examples of `data.train`, `data.dev` or `data.test`; none where no source is given."""
    sources: str = getattr(config.data, name)
    found: list[Any] = []
    for source in filter(None, (part.strip() for part in sources.split(","))):
        found += read_source(task, config, source, training=name == "train")
    return found


def read_source(task: Task[Any, Any], config: TaskConfig, source: str, training: bool) -> list[Any]:
    """The examples of one source: a path, or `tfds:NAME[:SPLIT]`.

    Raises:
      UserError: no such file or data set, one that the task cannot read, or one without examples.
    """
    if source.startswith("tfds:"):
        examples = _read_tfds(task, config, source)
    else:
        examples = task.read(source, config, training)
    if not examples:
        raise UserError(f"{source}: holds no examples of the task {task.name}")
    return examples


def _read_tfds(task: Task[Any, Any], config: TaskConfig, source: str) -> list[Any]:
    from elmo_jax.data.prepare.tfds_text import prepared_builder, read_split as read_records
    from elmo_jax.data.tfds import quiet_tfds

    read = getattr(task, "from_tfds", None)
    if read is None:
        raise UserError(f"{source}: TFDS has no data set that the task {task.name} can read; give files")
    _, name, *split = source.split(":")
    with quiet_tfds():
        builder = prepared_builder(source, name)
        records = read_records(source, builder, split[0] if split else "train")
    found: list[Any] = read(source, builder, records, config)
    return found
