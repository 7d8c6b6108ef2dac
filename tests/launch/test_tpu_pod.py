"""Tests launch/tpu_pod.sh with a stand-in for gcloud."""

import os
import shlex
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from tests.launch.scripts import ARGUMENTS, TPU, checkout, git, program, run

pytestmark = pytest.mark.quick

# It takes its next answer to each question from a file of words: the states of the slice, the exit codes of the run and
# the status that a worker reports afterwards. A call whose purpose is the next word of the file `refused` fails.
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
  *format=yaml*) echo "error: no such zone" && exit ;;
  *describe*)
    state=$(next states)
    case $state in
      ABSENT) echo "ERROR: (gcloud) NOT_FOUND: Resource was not found" >&2 && exit 1 ;;
      SILENT) echo "ERROR: (gcloud) UNAVAILABLE: try again" >&2 && exit 1 ;;
      *) echo "$state" && exit ;;
    esac ;;
  *elmo_jax_status\\)*) echo "status 134" && echo "status $(next reported)" && exit ;;
  *--command=*bin/elmo-jax*) purpose=run ;;
  *rsync*) purpose=copy ;;
  *" scp "*) purpose=scp && cp "$5" "$folder" ;;
  *"uv venv"*) purpose=install ;;
  *" create "*) purpose=create ;;
  *) purpose=other ;;
esac
read -ra refused <"$folder/refused"
if [[ ${refused[0]} == "$purpose" ]]; then next refused >/dev/null && exit 1; fi
if [[ $purpose == run ]]; then
  status=$(next statuses)
  if [[ $status == wait ]]; then
    touch "$folder/waiting"
    for _ in $(seq 600); do sleep 0.1; [[ -e $folder/stopped ]] && exit 143; done
  fi
  exit "$status"
fi
if [[ $* == *pkill* && -e $folder/waiting ]]; then touch "$folder/stopped"; fi
"""


def answers(folder: Path, states: str, statuses: str, refused: str = "", reported: str = "134") -> dict[str, str]:
    """Makes a gcloud that answers so; returns the environment in which it is found."""
    program(folder / "gcloud", GCLOUD)
    for name, words in {"states": states, "statuses": statuses, "refused": refused, "reported": reported}.items():
        (folder / name).write_text(words + "\n")
    return {"PATH": f"{folder}:{os.environ['PATH']}", "POLL_SECONDS": "0", "MAX_FAILURES": "2"}


OPTIONS = [*TPU, "--spot", "--copy", "gs://bucket/my corpus=data/my corpus", "--", *ARGUMENTS]


def calls_of(folder: Path) -> list[list[str]]:
    """Returns what was asked of gcloud, but for states."""
    calls = [call.split("\x1f")[:-1] for call in (folder / "calls").read_text().split("\x1e")[:-1]]
    return [call[2:] for call in calls if "describe" not in call]


def pod(folder: Path, states: str, statuses: str, **words: str) -> tuple[int, list[list[str]]]:
    """Runs tpu_pod.sh against a gcloud that answers so; returns its exit code and what it asked for."""
    there = answers(folder, states, statuses, **words)
    done = run("tpu_pod.sh", *OPTIONS, scripts=checkout(folder / "project"), **there)
    return done.returncode, calls_of(folder)


def kinds(calls: list[list[str]]) -> list[str]:
    """Returns one word for each call."""
    words = []
    for call in calls:
        command = next((word for word in call if word.startswith("--command=")), "")
        purposes = {
            "bin/elmo-jax": "run",
            "uv venv": "install",
            "rsync": "copy",
            "pkill": "stop",
            "$(cat elmo_jax_status)": "ask",
        }
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
    with tarfile.open(tmp_path / "elmo_jax.tar.gz") as archive:
        assert "launch/tpu_pod.sh" in archive.getnames()


@pytest.mark.parametrize("status", [0, 2, 134])
def test_the_worker_runs_the_command_and_keeps_its_status(tmp_path: Path, status: int) -> None:
    command = pod(tmp_path, "ACTIVE", "0")[1][-1][-1].removeprefix("--command=")
    programs = tmp_path / "home/elmo_jax/.venv/bin"
    programs.mkdir(parents=True)
    program(programs / "elmo-jax", f'#!/bin/sh\nprintf "%s\\n" "$@" >arguments\nexit {status}\n')
    assert subprocess.run(["bash", "-c", command], cwd=tmp_path / "home").returncode == status
    assert (tmp_path / "home/elmo_jax/arguments").read_text().splitlines() == ARGUMENTS
    assert (tmp_path / "home/elmo_jax_status").read_text() == f"{status}\n"


def test_the_worker_keeps_the_status_of_a_process_that_is_stopped(tmp_path: Path) -> None:
    command = pod(tmp_path, "ACTIVE", "0")[1][-1][-1].removeprefix("--command=")
    programs = tmp_path / "home/elmo_jax/.venv/bin"
    programs.mkdir(parents=True)
    stops = "trap 'sleep 0.5; echo saved; exit 143' TERM; touch started; for i in $(seq 600); do sleep 0.1; done"
    program(programs / "elmo-jax", f"#!/usr/bin/env bash\n{stops}\n")
    home = tmp_path / "home"
    shell = subprocess.Popen(
        ["bash", "-c", command], cwd=home, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (home / "elmo_jax/started").exists():
        assert shell.poll() is None
        time.sleep(0.02)
    os.killpg(shell.pid, signal.SIGTERM)  # the shell too, as pkill does
    assert shell.communicate(timeout=30)[0] == "saved\n" and shell.returncode == 143
    assert (home / "elmo_jax_status").read_text() == "143\n"


def test_tpu_pod_takes_the_slice_that_is_there(tmp_path: Path) -> None:
    assert kinds(pod(tmp_path, "ACTIVE", "0")[1]) == LAUNCHED


def test_tpu_pod_after_a_preemption(tmp_path: Path) -> None:
    status, calls = pod(tmp_path, "ACTIVE SUSPENDING SUSPENDED ABSENT ACTIVE", "255 0")
    assert status == 0 and kinds(calls) == [*LAUNCHED, "delete", "create", *LAUNCHED]


@pytest.mark.parametrize(
    ("statuses", "status", "launches"),
    [("2 0", 2, 1), ("143 137 0", 0, 3), ("1 1 1 0", 1, 3), ("255 255 255 0", 255, 3)],
)
def test_tpu_pod_restarts(tmp_path: Path, statuses: str, status: int, launches: int) -> None:
    actual, calls = pod(tmp_path, "ACTIVE " * 4, statuses)
    assert actual == status and kinds(calls) == LAUNCHED * launches


@pytest.mark.parametrize(("reported", "status", "launches"), [("143", 0, 2), ("2", 2, 1), ("1 1 1", 1, 3)])
def test_an_error_on_one_worker_is_found_behind_the_loss_that_the_others_see(
    tmp_path: Path, reported: str, status: int, launches: int
) -> None:
    statuses = "134 0" if status != 1 else "134 134 134 0"
    actual, calls = pod(tmp_path, "ACTIVE " * 4, statuses, reported=reported)
    launched = kinds(calls)
    assert actual == status and launched.count("run") == launches
    assert launched.count("ask") == statuses.split()[:launches].count("134")


@pytest.mark.parametrize("refused", ["scp", "install", "copy"])
def test_nothing_is_started_unless_all_is_installed(tmp_path: Path, refused: str) -> None:
    status, calls = pod(tmp_path, "ACTIVE ACTIVE", "0", refused=refused)
    until = LAUNCHED[: LAUNCHED.index(refused) + 1]
    assert status == 0 and kinds(calls) == [*until, *LAUNCHED]
    folder = tmp_path / "always"
    folder.mkdir()
    status, calls = pod(folder, "ACTIVE " * 3, "0", refused=f"{refused} " * 3)
    assert status == 255 and kinds(calls) == until * 3


def test_gcloud_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    status, calls = pod(tmp_path, "ACTIVE SILENT SILENT SILENT SILENT ACTIVE", "143 0")
    assert status == 0 and kinds(calls) == LAUNCHED * 2


def test_gcloud_that_never_answered_ends_the_launch(tmp_path: Path) -> None:
    there = answers(tmp_path, "SILENT", "0")
    done = run("tpu_pod.sh", *OPTIONS, scripts=checkout(tmp_path / "project"), **there)
    assert done.returncode == 1 and "UNAVAILABLE" in done.stderr and not calls_of(tmp_path)


def test_refused_and_failed_requests_are_repeated_a_few_times(tmp_path: Path) -> None:
    status, calls = pod(tmp_path, "ABSENT " * 3, "0", refused="create " * 3)
    assert status == 1 and kinds(calls) == ["create"] * 3
    folder = tmp_path / "failed"
    folder.mkdir()
    there = answers(folder, "FAILED ABSENT " * 3, "0")
    done = run("tpu_pod.sh", *OPTIONS, scripts=checkout(folder / "project"), **there)
    assert done.returncode == 1 and "no such zone" in done.stderr
    assert kinds(calls_of(folder)) == ["delete", "create"] * 2 + ["delete"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_the_workers_at_once(tmp_path: Path, number: int, status: int) -> None:
    environment = os.environ | answers(tmp_path, "ACTIVE", "wait")
    script = checkout(tmp_path / "project") / "tpu_pod.sh"
    process = subprocess.Popen(["bash", str(script), *OPTIONS], env=environment)
    while not (tmp_path / "waiting").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(30) == status
    assert kinds(calls_of(tmp_path)) == [*LAUNCHED, "stop"]


def test_changes_that_are_not_committed_are_refused(tmp_path: Path) -> None:
    there = answers(tmp_path, "ACTIVE", "0")
    scripts = checkout(tmp_path / "project")
    (scripts / "mine.py").write_text("steps = 1000\n")
    done = run("tpu_pod.sh", *OPTIONS, scripts=scripts, **there)
    assert done.returncode == 2 and "launch/mine.py" in done.stderr and "commit these files" in done.stderr
    assert not (tmp_path / "calls").exists()
    git(tmp_path / "project", "clean", "--quiet", "--force", "-d")
    assert run("tpu_pod.sh", *OPTIONS, scripts=scripts, **there).returncode == 0


def test_the_slice_is_deleted_with_the_command_that_is_shown(tmp_path: Path) -> None:
    there = answers(tmp_path, "ACTIVE", "0")
    scripts = checkout(tmp_path / "project")
    shown = run("tpu_pod.sh", "--project", "mine", *OPTIONS, scripts=scripts, **there).stderr.strip()
    command = shown.split("delete the slice with: ")[1]
    assert subprocess.run(["bash", "-c", f"bash {command}"], env=os.environ | there).returncode == 0
    assert calls_of(tmp_path)[-1][1:] == ["delete", "elmo", "--zone=us-west4-a", "--project=mine", "--force", "--quiet"]


def test_tpu_pod_dry_run_runs_nothing(tmp_path: Path) -> None:
    program(tmp_path / "gcloud", GCLOUD)
    shown = run("tpu_pod.sh", *TPU, "--dry-run", "--", *ARGUMENTS, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert shown.returncode == 0 and not (tmp_path / "calls").exists()
    lines = [shlex.split(line) for line in shown.stdout.splitlines()]
    assert lines[0][:5] == ["gcloud", "compute", "tpus", "queued-resources", "create"]
    words = shlex.split(lines[-1][-1].removeprefix("--command="))
    assert words[words.index(".venv/bin/elmo-jax") + 1 :][: len(ARGUMENTS) - 1] == ARGUMENTS[:-1]
