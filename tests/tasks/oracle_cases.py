"""Reads the arrays of `tests/oracles/tasks`, whose keys are `case/kind/name`; tests must read all of them."""

import functools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "oracles" / "tasks"
COVERED = set()  # the pairs (file, case) that a test of the imported modules reads whole


class Arrays(Mapping):
    """The arrays of one kind, which remember the names that were read."""

    def __init__(self, arrays):
        self.arrays, self.read = arrays, set()

    def __getitem__(self, name):
        array = self.arrays[name]
        self.read.add(name)
        return array

    def __contains__(self, name):
        return name in self.arrays

    def __iter__(self):
        return iter(self.arrays)

    def __len__(self):
        return len(self.arrays)


class Case(dict):
    """The kinds of a case, each with its `Arrays`."""

    def __init__(self, name, kinds):
        super().__init__({kind: Arrays(arrays) for kind, arrays in kinds.items()})
        self.name = name

    def unread(self):
        return {f"{kind}/{name}" for kind, arrays in self.items() for name in arrays.arrays.keys() - arrays.read}


def case_names(file):
    with np.load(FOLDER / file) as arrays:
        return sorted({key.split("/")[0] for key in arrays.files})


def read_case(file, case):
    """Returns the arrays of one case by kind and name, for a test that needs some of them."""
    kinds = {}
    with np.load(FOLDER / file) as arrays:
        for key in arrays.files:
            name, kind, rest = key.split("/", 2)
            if name == case:
                kinds.setdefault(kind, {})[rest] = arrays[key]
    return Case(case, kinds)


def each_case(file, *names, but=()):
    """Runs a test with each case of a file, or with the named ones, as `case`; the test must read all arrays.

    Args:
      file: the name of the file.
      names: the cases; all for none.
      but: `kind/name` of the arrays, in any of these cases, that the test has no use for. It may not read them.
    """
    names = names or case_names(file)
    COVERED.update((file, name) for name in names)

    def decorate(test):
        @pytest.mark.parametrize("case", names)
        @functools.wraps(test)
        def whole(*args, case, **kwargs):
            arrays = read_case(file, case)
            everything = arrays.unread()
            test(*args, case=arrays, **kwargs)
            allowed, unread = set(but) & everything, arrays.unread()
            assert unread == allowed, f"{file}, {case}: {unread - allowed} not read, {allowed - unread} read"

        return whole

    return decorate
