"""A short selection of what `make fuzz` tries on the command line."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.command_line import Counts, all_cases, check, commands, few_cases, options_of

CASES = 40


def test_every_mistake_is_one_line(things: Path, tmp_path: Path) -> None:
    counts = Counts()
    for case in few_cases(CASES):
        check(case, things, tmp_path / "scratch", counts)
    assert not counts.faults, counts.faults[:3]
    assert counts.cases == CASES and counts.refusals > 0.7 * CASES


def test_every_option_is_among_the_cases() -> None:
    """Walks the options of every command, including those that are added later."""
    lines = [" ".join(case) for case in all_cases()]
    for name, parser in commands().items():
        for action in options_of(parser):
            for option in action.option_strings[-1:]:
                assert any(line.startswith(name) and option in line for line in lines), (name, option)
