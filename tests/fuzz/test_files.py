"""A short selection of what `make fuzz` tries on files."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.command_line import Counts
from tests.fuzz.files import check_files

CASES = 36


def test_damage_is_one_line_or_changes_nothing(things: Path, tmp_path: Path) -> None:
    counts = Counts()
    check_files(things, tmp_path, CASES, 0, counts)
    assert not counts.faults, counts.faults[:3]
    assert counts.cases == CASES and counts.refusals > CASES / 4
