"""The values of the command line that no command needs to be started for."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from elmo_jax.cli.values import number, output, whole

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("+3", 3), ("007", 7)])
def test_whole_numbers(text: str, value: int) -> None:
    assert whole(1, 10)(text) == value


@pytest.mark.parametrize("text", ["", "0", "11", "5.0", "1e0", "1_0", " 5", "٣", "five", "9" * 5000])
def test_what_is_no_whole_number_in_the_range_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number of at least 1 and at most 10, got"):
        whole(1, 10)(text)


@pytest.mark.parametrize("text", ["nan", "inf", "-0.1", "two"])
def test_what_is_no_number_in_the_range_is_refused(text: str) -> None:
    assert number(0, 1)("0.5") == 0.5
    with pytest.raises(argparse.ArgumentTypeError, match="expected a number of at least 0 and at most 1, got"):
        number(0, 1)(text)


def test_an_output_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    assert output(str(tmp_path / "out.json")) == tmp_path / "out.json"
    for path, message in (
        (tmp_path / ("x" * 300), "cannot be written .File name too long"),
        (tmp_path / "nowhere" / "out.json", "no folder .*nowhere'; make it first"),
        (tmp_path, "expected the name of a file, got the folder"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match=message):
            output(str(path))


def test_an_output_is_no_file_of_a_run(tmp_path: Path) -> None:
    assert output(str(tmp_path / "result.json"))  # of no run
    (tmp_path / "config.json").touch()
    (tmp_path / "link.json").symlink_to("config.json")
    for name in ("config.json", "result.json", "metrics.jsonl", "link.json"):
        with pytest.raises(argparse.ArgumentTypeError, match=f"{name}' is a file of a run or a corpus; choose another"):
            output(str(tmp_path / name))
    assert output(str(tmp_path / "metrics.json"))


def test_an_output_is_not_the_file_of_a_redirected_stream(tmp_path: Path) -> None:
    """It has what was printed, and would be replaced."""
    with (tmp_path / "log").open("w") as log:
        with pytest.raises(argparse.ArgumentTypeError, match="is .*/log', which would be replaced; name another file"):
            output(f"/dev/fd/{log.fileno()}")
    assert output("/dev/null") == Path("/dev/null")
