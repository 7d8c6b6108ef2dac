"""slurm.sbatch: what it would do, and when it requeues a job, with stand-ins for srun and scontrol."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.launch.scripts import ARGUMENTS, program, run


def test_slurm_dry_run() -> None:
    shown = run("slurm.sbatch", "--dry-run", "--", *ARGUMENTS, ELMO_JAX="elmo-jax").stdout.splitlines()
    options = [line.removeprefix("#SBATCH ") for line in shown[:-1]]
    for option in ("--ntasks-per-node=1", "--requeue", "--signal=TERM@180", "--open-mode=append"):
        assert option in options
    step = shlex.split(shown[-1])
    assert step[0] == "srun" and step[step.index("elmo-jax") + 1 :] == ARGUMENTS


@pytest.mark.parametrize(
    ("statuses", "quick", "requeues"),
    [
        ([0], 600, 0),
        ([2], 600, 0),
        ([143, 130, 129, 138, 152, 0], 600, 5),
        ([75, 143, 0], 600, 2),
        ([1, 1, 1, 0], 600, 2),
        ([75, 75, 75, 0], 600, 2),  # processes are lost at once, several times in a row
        ([75, 137, 134, 0], 0, 3),
    ],
)
def test_slurm_requeues(tmp_path: Path, statuses: list[int], quick: int, requeues: int) -> None:
    program(tmp_path / "srun", '#!/bin/sh\nexit "$STATUS"\n')
    actual = []
    for status in statuses:
        asked, _ = slurm(tmp_path, STATUS=str(status), QUICK_SECONDS=str(quick))
        actual.append(asked)
        if len(actual) > 1 and actual[-1] == actual[-2] or not asked:
            break
    assert actual[-1] == requeues
    assert not list(tmp_path.glob(".elmo-*"))  # nothing is left behind at the end


def slurm(folder: Path, **environment: str) -> tuple[int, subprocess.CompletedProcess[str]]:
    """Runs slurm.sbatch as one launch of job 7; returns how often the job has been requeued, and the launch."""
    program(folder / "scontrol", '#!/bin/sh\necho "$@" >>"$FOLDER/requeues"\n')
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a", "SLURM_SUBMIT_DIR": str(folder), "MAX_FAILURES": "2"}
    job |= {"PATH": f"{folder}:{os.environ['PATH']}", "FOLDER": str(folder)}
    done = run("slurm.sbatch", "--", "pretrain", **(job | environment))
    requeues = folder / "requeues"
    asked = requeues.read_text().splitlines() if requeues.exists() else []
    assert set(asked) <= {"requeue 7"}
    return len(asked), done


# A stand-in for srun runs two processes and returns the highest exit code, as srun does.
SRUN = """\
#!/usr/bin/env bash
shift 2
highest=0
for SLURM_PROCID in 0 1; do
  export SLURM_PROCID
  code=0
  "$@" || code=$?
  ((code > highest)) && highest=$code
done
exit $highest
"""


@pytest.mark.parametrize(
    ("codes", "requeues", "ended"),
    [("134 2", [0], 2), ("2 75", [0], 2), ("134 1", [1, 2, 2], 134), ("137 134", [1, 2, 3], 0), ("0 0", [0], 0)],
)
def test_slurm_sees_a_mistake_behind_the_loss_that_the_others_see(
    tmp_path: Path, codes: str, requeues: list[int], ended: int
) -> None:
    program(tmp_path / "srun", SRUN)
    # each process ends with its word of CODES
    process = program(
        tmp_path / "elmo", '#!/usr/bin/env bash\nread -ra codes <<<"$CODES"\nexit "${codes[$SLURM_PROCID]}"\n'
    )
    environment = {"ELMO_JAX": process, "CODES": codes, "QUICK_SECONDS": "0"}
    launches = [slurm(tmp_path, **environment) for _ in requeues]
    assert [asked for asked, _ in launches] == requeues
    assert launches[-1][1].returncode == ended


def test_slurm_does_not_requeue_what_it_cannot_count(tmp_path: Path) -> None:
    program(tmp_path / "srun", "#!/bin/sh\nexit 134\n")
    (tmp_path / "file").touch()
    asked, done = slurm(tmp_path, SLURM_SUBMIT_DIR=str(tmp_path / "file"), QUICK_SECONDS="0")
    assert asked == 0 and done.returncode == 134 and "could not be written" in done.stdout
