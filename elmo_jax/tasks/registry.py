"""Finds tasks by name; a task is imported only when it is used."""

import importlib
from typing import Any

from ml_collections import ConfigDict

from elmo_jax.errors import UserError
from elmo_jax.settings import from_dict, to_dict
from elmo_jax.tasks.core.config import TaskConfig
from elmo_jax.tasks.core.task import Task

NAMES = ("pos", "ner", "sst", "snli", "srl", "coref", "squad")


def task_of(name: str) -> Task[Any, Any]:
    """Returns the task with this name. Raises `UserError` if there is no such task."""
    if name not in NAMES:
        raise UserError(f"config.task: expected {' or '.join(map(repr, NAMES))}, got {name!r}")
    task: Task[Any, Any] = importlib.import_module(f"elmo_jax.tasks.{name}.task").TASK
    return task


def default_config(name: str) -> ConfigDict:
    """Returns the defaults of a task for an experiment's `get_config()` to edit; a misspelt key is an error."""
    return ConfigDict(to_dict(task_of(name).config_class(task=name))).lock()


def task_config(values: Any) -> TaskConfig:
    """Returns a task's settings, in its own config class, from nested dicts or a `ConfigDict` with the key `task`."""
    task = task_of(values.get("task", ""))
    config: TaskConfig = from_dict(values, task.config_class)
    if not task.rows_are_examples and config.train.batch_size != 1:
        size = config.train.batch_size
        raise UserError(f"config.train.batch_size: expected 1, since a step reads one document, got {size}")
    return config
