"""Tests launch/tpu_pod.sh with a stand-in for gcloud."""

import os
import shlex
from pathlib import Path

import pytest

from tests.launch.scripts import ARGUMENTS, TPU, program, run

GCLOUD = """\
#!/usr/bin/env bash
folder=$(dirname "$0")
printf '%s\\x1f' "$@" >>"$folder/calls" # units, and a record
printf '\\x1e' >>"$folder/calls"
next() { # takes the first word out of a file of them
  read -ra words <"$folder/$1"
  echo "${words[*]:1}" >"$folder/$1"
  echo "${words[0]}"
}
case "$*" in
  *describe*) word=$(next states); [[ $word != ABSENT ]] && echo "$word" ;;
  *--command=*bin/elmo-jax*) exit "$(next statuses)" ;;
esac
"""


def pod(folder: Path, states: str, statuses: str) -> tuple[int, list[list[str]]]:
    """Runs tpu_pod.sh against a gcloud that answers so; returns its exit code and what it asked for, but for states."""
    program(folder / "gcloud", GCLOUD)
    (folder / "states").write_text(states)
    (folder / "statuses").write_text(statuses)
    there = {"PATH": f"{folder}:{os.environ['PATH']}", "POLL_SECONDS": "0", "MAX_FAILURES": "2"}
    done = run(
        "tpu_pod.sh", *TPU, "--spot", "--copy", "gs://bucket/my corpus=data/my corpus", "--", *ARGUMENTS, **there
    )
    calls = [call.split("\x1f")[:-1] for call in (folder / "calls").read_text().split("\x1e")[:-1]]
    return done.returncode, [call[2:] for call in calls if "describe" not in call]


def kinds(calls: list[list[str]]) -> list[str]:
    """Returns one word for each call."""
    words = []
    for call in calls:
        command = next((word for word in call if word.startswith("--command=")), "")
        purposes = {"bin/elmo-jax": "run", "uv venv": "install", "rsync": "copy", "pkill": "stop"}
        words.append(next((purpose for text, purpose in purposes.items() if text in command), call[1]))
    return words


LAUNCHED = ["scp", "install", "copy", "stop", "run"]


def test_tpu_pod_from_nothing(tmp_path: Path) -> None:
    status, calls = pod(tmp_path, "ABSENT WAITING_FOR_RESOURCES PROVISIONING ACTIVE", "0")
    assert status == 0 and kinds(calls) == ["create", *LAUNCHED]
    for flag in (
        "--spot",
        "--accelerator-type=v5litepod-64",
        "--runtime-version=v2-alpha-tpuv5-lite",
        "--node-id=elmo",
    ):
        assert flag in calls[0]
    for call in calls[1:]:
        assert call[0] == "tpu-vm" and "--worker=all" in call and "--zone=us-west4-a" in call
    command = calls[-1][-1].removeprefix("--command=")
    assert shlex.split(command) == ["cd", "elmo_jax", "&&", ".venv/bin/elmo-jax", *ARGUMENTS]


def test_tpu_pod_takes_the_slice_that_is_there(tmp_path: Path) -> None:
    assert kinds(pod(tmp_path, "ACTIVE", "0")[1]) == LAUNCHED


def test_tpu_pod_after_a_preemption(tmp_path: Path) -> None:
    status, calls = pod(tmp_path, "ACTIVE SUSPENDING SUSPENDED ABSENT ACTIVE", "255 0")
    assert status == 0 and kinds(calls) == [*LAUNCHED, "delete", "create", *LAUNCHED]


@pytest.mark.parametrize(
    ("statuses", "status", "launches"),
    [("2 0", 2, 1), ("143 134 0", 0, 3), ("1 1 1 0", 1, 3), ("255 255 255 0", 255, 3)],
)
def test_tpu_pod_restarts(tmp_path: Path, statuses: str, status: int, launches: int) -> None:
    found, calls = pod(tmp_path, "ACTIVE " * 4, statuses)
    assert found == status and kinds(calls) == LAUNCHED * launches


def test_tpu_pod_dry_run_runs_nothing(tmp_path: Path) -> None:
    program(tmp_path / "gcloud", GCLOUD)
    shown = run("tpu_pod.sh", *TPU, "--dry-run", "--", *ARGUMENTS, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert shown.returncode == 0 and not (tmp_path / "calls").exists()
    lines = [shlex.split(line) for line in shown.stdout.splitlines()]
    assert lines[0][:5] == ["gcloud", "compute", "tpus", "queued-resources", "create"]
    assert shlex.split(lines[-1][-1].removeprefix("--command="))[3:] == [".venv/bin/elmo-jax", *ARGUMENTS]
