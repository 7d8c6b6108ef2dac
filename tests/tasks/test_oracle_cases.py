"""Tests that every case of the oracles is compared; `each_case` sees to it that every array of a case is."""

import importlib
import pkgutil

import pytest

import tests.tasks
from tests.tasks import oracle_cases


def test_every_case_is_compared():
    for module in pkgutil.walk_packages(tests.tasks.__path__, "tests.tasks."):
        importlib.import_module(module.name)
    files = {path.name for path in oracle_cases.FOLDER.glob("*.npz")}
    assert {(file, case) for file in files for case in oracle_cases.case_names(file)} == oracle_cases.COVERED


def test_a_test_that_leaves_an_array_unread_fails():
    @oracle_cases.each_case("coref.npz", "buckets")
    def lazy(case):
        return case["input"]["distance"]

    with pytest.raises(AssertionError, match="output/bucket"):
        lazy(case="buckets")
