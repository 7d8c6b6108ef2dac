"""The things that both fuzzers need."""

from pathlib import Path

import pytest

from tests.fuzz.things import make_things


@pytest.fixture(scope="session")
def things(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_things(tmp_path_factory.mktemp("things"))
