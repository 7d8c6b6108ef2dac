"""The usage of all launch scripts, and local.sh with a stand-in for elmo-jax."""

import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.scripts import ARGUMENTS, GKE, LAUNCH, TPU, program, run


@pytest.mark.parametrize("script", sorted(path.name for path in LAUNCH.iterdir() if path.suffix in (".sh", ".sbatch")))
def test_shellcheck(script: str) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    actual = subprocess.run([str(shellcheck), str(LAUNCH / script)], capture_output=True, text=True)
    assert actual.returncode == 0, actual.stdout


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("local.sh", []),
        ("local.sh", ["0", "--", "pretrain"]),
        ("local.sh", ["2", "pretrain"]),
        ("slurm.sbatch", ["pretrain"]),
        ("tpu_pod.sh", [*TPU[:4], "--", "pretrain"]),
        ("tpu_pod.sh", [*TPU, "--colour", "red", "--", "pretrain"]),
        ("tpu_pod.sh", [*TPU, "--copy", "corpus", "--", "pretrain"]),
        ("gke.sh", [*GKE[2:], "--", "pretrain"]),
        ("gke.sh", [*GKE[:-1], "four", "--", "pretrain"]),
        ("gke.sh", GKE),
    ],
)
def test_a_mistake_is_answered_with_the_usage(script: str, arguments: list[str]) -> None:
    refused = run(script, *arguments)
    assert refused.returncode == 2 and refused.stdout == ""
    assert f"launch/{script}" in refused.stderr


def test_local_dry_run() -> None:
    shown = run("local.sh", "--dry-run", "3", "--", *ARGUMENTS, ELMO_JAX="python -m elmo_jax", JAX_PLATFORMS="cpu")
    lines = [shlex.split(line) for line in shown.stdout.splitlines()]
    port = lines[0][-5]
    assert port.startswith("127.0.0.1:")
    head, actual = ["python", "-m", "elmo_jax", *ARGUMENTS], ["--coordinator", port, "--processes", "3", "--process"]
    assert lines == [[*head, *actual, str(i)] for i in range(3)]


def test_local_gives_each_process_a_gpu(tmp_path: Path) -> None:
    program(tmp_path / "nvidia-smi", "#!/bin/sh\nprintf '0\\n1\\n'\n")
    there = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "JAX_PLATFORMS": ""}
    shown = run("local.sh", "--dry-run", "2", "--", "pretrain", **there).stdout.splitlines()
    assert [shlex.split(line)[:2] for line in shown] == [["env", f"CUDA_VISIBLE_DEVICES={i}"] for i in range(2)]
    chosen = run("local.sh", "--dry-run", "2", "--", "pretrain", CUDA_VISIBLE_DEVICES="4,7", **there).stdout
    assert "CUDA_VISIBLE_DEVICES=4 " in chosen and "CUDA_VISIBLE_DEVICES=7 " in chosen
    refused = run("local.sh", "3", "--", "pretrain", **there)
    assert refused.returncode == 2 and "3 processes for 2 GPUs" in refused.stderr


@pytest.mark.parametrize("hidden", ["", "-1", "by an error"])
def test_local_without_usable_gpus(tmp_path: Path, hidden: str) -> None:
    works = hidden != "by an error"
    answer = "printf '0\\n1\\n'" if works else "echo 'NVIDIA-SMI has failed'; exit 9"
    program(tmp_path / "nvidia-smi", f"#!/bin/sh\n{answer}\n")
    there = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "JAX_PLATFORMS": ""}
    there |= {"CUDA_VISIBLE_DEVICES": hidden} if works else {}
    shown = run("local.sh", "--dry-run", "3", "--", "pretrain", **there)
    assert shown.returncode == 0 and "CUDA_VISIBLE_DEVICES" not in shown.stdout


@pytest.mark.parametrize("script", ["local.sh", "slurm.sbatch"])
def test_the_path_of_the_project_may_have_spaces(tmp_path: Path, script: str) -> None:
    project = tmp_path / "my project"
    shutil.copytree(LAUNCH, project / "launch")
    (project / ".venv/bin").mkdir(parents=True)
    own = program(project / ".venv/bin/elmo-jax", "#!/bin/sh\n")
    arguments = ["--dry-run", *["1"] * (script == "local.sh"), "--", "pretrain"]
    there = {"ELMO_JAX": "", "SLURM_SUBMIT_DIR": str(project), "JAX_PLATFORMS": "cpu"}
    shown = run(script, *arguments, scripts=project / "launch", **there).stdout.splitlines()
    words = shlex.split(shown[-1])
    assert words[words.index("pretrain") - 1] == own


# A stand-in for elmo-jax prints its number and its arguments, and then does what BEHAVIOUR says for this number.
STAND_IN = """\
#!/usr/bin/env bash
folder=$(dirname "$0")
printf '%s\\n' "$@" >"$folder/arguments-${@: -1}"
trap 'echo term >>"$folder/signals-${@: -1}"; exit 143' TERM
trap 'echo int >>"$folder/signals-${@: -1}"; exit 130' INT
read -ra behaviour <"$folder/behaviour"
case ${behaviour[${@: -1}]} in
  wait) touch "$folder/waiting-${@: -1}"; for _ in $(seq 600); do sleep 0.1; done ;;
  deaf)
    trap '' TERM
    touch "$folder/waiting-${@: -1}"
    for _ in $(seq 600); do sleep 0.1; done
    touch "$folder/survived-${@: -1}" ;;
  kill)  # once the others listen
    for other in "${!behaviour[@]}"; do
      case ${behaviour[$other]} in wait | deaf) until [ -e "$folder/waiting-$other" ]; do sleep 0.02; done ;; esac
    done
    kill -KILL $$ ;;
  pause) (sleep 0.5; kill -CONT $$) & kill -STOP $$ ;;  # as Ctrl-Z would, and fg
  *) exit "${behaviour[${@: -1}]}" ;;
esac
"""


def local(folder: Path, behaviour: str, **environment: str) -> dict[str, str]:
    """The environment in which local.sh starts the stand-in."""
    (folder / "behaviour").write_text(behaviour)
    return {"ELMO_JAX": program(folder / "elmo", STAND_IN), "JAX_PLATFORMS": "cpu", **environment}


def test_local_runs_all_and_hands_on_the_arguments(tmp_path: Path) -> None:
    done = run("local.sh", "2", "--", *ARGUMENTS, **local(tmp_path, "0 0"))
    assert done.returncode == 0, done.stderr
    for i in range(2):
        given = (tmp_path / f"arguments-{i}").read_text().splitlines()
        assert given[: len(ARGUMENTS)] == ARGUMENTS and given[-1] == str(i)


@pytest.mark.parametrize(
    ("behaviour", "status"), [("0 3", 3), ("2 2", 2), ("75 0", 75), ("0 kill", 137), ("0 pause", 0)]
)
def test_local_hands_on_the_exit_code(tmp_path: Path, behaviour: str, status: int) -> None:
    assert run("local.sh", "2", "--", "pretrain", **local(tmp_path, behaviour)).returncode == status


def test_local_ends_the_others_when_one_dies(tmp_path: Path) -> None:
    done = run("local.sh", "3", "--", "pretrain", **local(tmp_path, "wait kill deaf", GRACE_SECONDS="1"))
    assert done.returncode == 137 and not (tmp_path / "survived-2").exists()
    assert (tmp_path / "signals-0").read_text() == "term\n"


@pytest.mark.parametrize(
    ("number", "word", "status"),
    [(signal.SIGINT, "int", 130), (signal.SIGTERM, "term", 143), (signal.SIGHUP, "term", 143)],
)
def test_local_passes_a_signal_on_once(tmp_path: Path, number: int, word: str, status: int) -> None:
    environment = os.environ | local(tmp_path, "wait wait")
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, which may run the tests, ignores it
    process = subprocess.Popen(["bash", str(LAUNCH / "local.sh"), "2", "--", "pretrain"], env=environment)
    signal.signal(signal.SIGHUP, before)
    while not all((tmp_path / f"waiting-{i}").exists() for i in range(2)):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(30) == status
    assert [(tmp_path / f"signals-{i}").read_text() for i in range(2)] == [f"{word}\n"] * 2


def test_local_passes_on_a_ctrl_c_of_its_terminal(tmp_path: Path) -> None:
    """The terminal signals its foreground process group, which must be that of the script whenever Ctrl-C comes."""
    environment = os.environ | local(tmp_path, "wait wait")
    child, terminal = pty.fork()
    if child == 0:
        os.execve("/bin/bash", ["bash", str(LAUNCH / "local.sh"), "2", "--", "pretrain"], environment)
    while not all((tmp_path / f"waiting-{i}").exists() for i in range(2)):
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        time.sleep(0.02)
    time.sleep(0.1)  # now the script waits
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    os.close(terminal)
    assert [(tmp_path / f"signals-{i}").read_text() for i in range(2)] == ["int\n"] * 2
