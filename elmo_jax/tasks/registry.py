"""Finds tasks by name or, of other packages, as `module:attribute`; a task is imported only when it is used."""

import importlib
import importlib.metadata
import importlib.util
import re
import sys
import traceback
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from elmo_jax.errors import UserError
from elmo_jax.settings import from_dict, to_dict
from elmo_jax.tasks.core.config import TaskConfig
from elmo_jax.tasks.core.task import Task

NAMES = ("pos", "ner", "sst", "snli", "srl", "coref", "squad")
_IMPORTABLE = re.compile(r"(\w+)((?:\.\w+)*):(\w+)")


def get_task(name: str, packages: Collection[str] = ()) -> Task[Any, Any]:
    """Returns the task with this name, or the one that `module:attribute` names; see `import_object`."""
    if ":" not in name and name not in NAMES:
        expected = f"{' or '.join(map(repr, NAMES))}, or MODULE:ATTRIBUTE for a task of another package"
        raise UserError(f"config.task: expected {expected}, got {name!r}")
    task = import_object(name if ":" in name else f"elmo_jax.tasks.{name}.task:TASK", "config.task", packages)
    if not isinstance(task, Task):
        raise UserError(f"config.task: expected an instance of elmo_jax's class Task, but {name!r} is {task!r:.80}")
    return task


def import_object(spec: str, key: str, packages: Collection[str] = ()) -> Any:
    """Returns what the setting `key` names as `module:attribute`; `packages` are those that may have the module."""
    match = _IMPORTABLE.fullmatch(spec)
    if not match:
        raise UserError(f"{key}: expected MODULE:ATTRIBUTE, such as my_package.tasks:TASK, got {spec!r}")
    module, _, attribute = spec.partition(":")
    try:
        value = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the module may raise anything
        problem = f": {one_line(error)}"
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            remedy = f"install {' '.join(packages) or 'the package that has it'}"
            problem = f", since there is no module {error.name!r}; {remedy}"
        raise UserError(f"{key}: {spec!r} cannot be imported{problem}") from None
    if not hasattr(value, attribute):
        raise UserError(f"{key}: the module {module!r} has no {attribute!r}")
    return getattr(value, attribute)


def one_line(error: BaseException) -> str:
    """Returns where a user's code raised an error, and which."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = (error.filename, error.lineno) if isinstance(error, SyntaxError) else (frame.filename, frame.lineno)
    return f"{where[0]}, line {where[1]}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _modules(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what the settings of an experiment import, as `module:attribute`, with the top-level module of each."""
    specs = (config.get("task"), config.get("data", {}).get("reader"))
    return [(spec, match[1]) for spec in specs if isinstance(spec, str) and (match := _IMPORTABLE.fullmatch(spec))]


def packages_of(config: TaskConfig) -> list[str]:
    """Returns the names of the installed packages that the settings of an experiment import code from."""
    modules = _modules(to_dict(config))
    known = importlib.metadata.packages_distributions() if modules else {}
    return sorted({package for _, module in modules for package in known.get(module, ())})


def check_no_code(run: epath.Path, config: Mapping[str, Any]) -> None:
    """Raises `UserError` if the settings in a run's file would import a module that lies in the run's folder."""
    for spec, name in _modules(config):
        module = None if name in sys.modules else importlib.util.find_spec(name)
        paths = [module.origin, *(module.submodule_search_locations or ())] if module else []
        if any(path and Path(run).resolve() in Path(path).resolve().parents for path in paths):
            raise UserError(f"{run}: {spec!r} is in the run's own folder; only code of installed packages is imported")


def default_config(name: str) -> ConfigDict:
    """Returns the defaults of a task for an experiment's `get_config()` to edit; see `get_task`."""
    return ConfigDict(to_dict(get_task(name).config_class(task=name))).lock()


def task_config(values: Any, packages: Collection[str] = ()) -> TaskConfig:
    """Returns a task's settings, in its own config class, from nested dicts or a `ConfigDict` with the key `task`."""
    task = get_task(values.get("task", ""), packages)
    config: TaskConfig = from_dict(values, task.config_class)
    if task.document_level and config.train.batch_size != 1:
        size = config.train.batch_size
        raise UserError(f"config.train.batch_size: expected 1, since a step reads one document, got {size}")
    if config.elmo.where == "after_first" and not task.has_after_first:
        raise UserError(f"config.elmo.where: only the task 'ner' has 'after_first', got the task {config.task!r}")
    return config
