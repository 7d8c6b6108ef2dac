"""Reads the files that a task's run keeps, with an error of one line if one of them is missing or damaged."""

from __future__ import annotations

import zipfile
import zlib
from typing import Any

import numpy as np
from etils import epath

from elmo_jax.errors import UserError
from elmo_jax.files import read_sealed_json

RESTORE = "restore it, or train the task again in another --workdir"


def read_object(path: epath.Path, remedy: str = RESTORE) -> dict[str, Any]:
    """Returns the object in a sealed JSON file. Raises `UserError` if the file is missing or damaged."""
    try:
        return read_sealed_json(path, remedy)
    except FileNotFoundError:
        raise UserError(f"{path}: missing; {remedy}") from None


def read_arrays(path: epath.Path, remedy: str = RESTORE) -> dict[str, np.ndarray]:
    """Returns all arrays of an `.npz` file, which has checksums; pickled arrays are never read.

    Raises:
      UserError: the file is missing or damaged.
    """
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise UserError(f"{path}: missing; {remedy}") from None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged ({type(error).__name__}); {remedy}") from None
