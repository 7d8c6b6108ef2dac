"""Reads the files that a task's run keeps, with an error of one line if one of them is missing or damaged."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from etils import epath

from elmo_jax.errors import UserError

Value = TypeVar("Value")

RESTORE = "restore it, or train the task again in another --workdir"


def stored(path: epath.Path, read: Callable[[epath.Path], Value], advice: str = RESTORE) -> Value:
    """Returns what `read` makes of a file.

    Args:
      path: the file.
      read: reads it, and raises any of the usual errors if its content is not what was written.
      advice: what to do if the file is missing or damaged.

    Raises:
      UserError: the file is missing or damaged.
    """
    try:
        return read(path)
    except FileNotFoundError:
        raise UserError(f"{path}: missing; {advice}") from None
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        RecursionError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise UserError(f"{path}: damaged ({type(error).__name__}); {advice}") from None


def json_of(path: epath.Path) -> dict[str, Any]:
    """Returns the JSON object in a file."""
    value = json.loads(path.read_bytes())
    if not isinstance(value, dict):
        raise TypeError
    return value


def arrays_of(path: epath.Path) -> dict[str, np.ndarray]:
    """Returns all arrays of an `.npz` file, without pickled ones, which are never read."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}
