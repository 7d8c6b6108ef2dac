"""Helpers of the tests of readers and scorers."""

import functools
import json
from pathlib import Path

import pytest

from elmo_jax.errors import UserError

ORACLES = Path(__file__).parents[1] / "oracles" / "tasks"


@functools.cache
def oracle(key):
    """The entries of one scorer; tests/oracles/tasks/README.md says where they come from."""
    return json.loads((ORACLES / "metrics.json").read_text())[key]


def names(key):
    return [entry["name"] for entry in oracle(key)]


def write(folder, text, name="file.txt"):
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def message(call, path, *args, **kwargs):
    """Returns the error about a file without the name of the file."""
    with pytest.raises(UserError) as error:
        call(path, *args, **kwargs)
    text = str(error.value)
    assert text.startswith(f"{path}, ") and "\n" not in text
    return text.removeprefix(f"{path}, ")
