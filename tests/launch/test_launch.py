"""The launch scripts: what they would do, and what they do with stand-ins for what is not here (gcloud, kubectl)."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.launch.scripts import ARGUMENTS, GKE, LAUNCH, TPU, program, run

GKE += ["--topology", "8x8", "--hosts", "16", "--chips", "4"]


@pytest.mark.parametrize("script", sorted(path.name for path in LAUNCH.iterdir() if path.suffix in (".sh", ".sbatch")))
def test_shellcheck(script: str) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    found = subprocess.run([str(shellcheck), str(LAUNCH / script)], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


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
    head, found = ["python", "-m", "elmo_jax", *ARGUMENTS], ["--coordinator", port, "--processes", "3", "--process"]
    assert lines == [[*head, *found, str(i)] for i in range(3)]


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
def test_the_path_of_the_project_may_have_blanks(tmp_path: Path, script: str) -> None:
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
    process = subprocess.Popen(["bash", str(LAUNCH / "local.sh"), "2", "--", "pretrain"], env=environment)
    while not all((tmp_path / f"waiting-{i}").exists() for i in range(2)):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(30) == status
    assert [(tmp_path / f"signals-{i}").read_text() for i in range(2)] == [f"{word}\n"] * 2


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
        ([143, 130, 143, 143, 0], 600, 4),
        ([75, 143, 0], 600, 2),
        ([1, 1, 1, 0], 600, 2),
        ([75, 75, 75, 0], 600, 2),  # processes are lost at once, several times in a row
        ([75, 137, 134, 0], 0, 3),
    ],
)
def test_slurm_requeues(tmp_path: Path, statuses: list[int], quick: int, requeues: int) -> None:
    program(tmp_path / "srun", '#!/bin/sh\nexit "$STATUS"\n')
    found = []
    for status in statuses:
        asked, _ = slurm(tmp_path, STATUS=str(status), QUICK_SECONDS=str(quick))
        found.append(asked)
        if len(found) > 1 and found[-1] == found[-2] or not asked:
            break
    assert found[-1] == requeues
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


def strict(properties: dict, **more: object) -> dict:
    """Returns the schema of an object with these fields and no others."""
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


# the documented fields of https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/ that the file uses
WORDS = {"type": "array", "items": {"type": "string"}}


REASONS = ["BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"]


RULE = strict(
    {
        "name": {"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
        "action": {"enum": ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]},
        "onJobFailureReasons": {"type": "array", "items": {"enum": REASONS}},
        "targetReplicatedJobs": WORDS,
    },
    required=["name", "action"],
)


REPLICATED = {"name": {"type": "string"}, "replicas": {"type": "integer"}, "template": {"type": "object"}}


JOBSET = strict(
    {
        "apiVersion": {"const": "jobset.x-k8s.io/v1alpha2"},
        "kind": {"const": "JobSet"},
        "metadata": strict({"name": {"type": "string"}, "annotations": {"type": "object"}}),
        "spec": strict(
            {
                "failurePolicy": strict(
                    {"maxRestarts": {"type": "integer"}, "rules": {"type": "array", "items": RULE}}
                ),
                "replicatedJobs": {"type": "array", "items": strict(REPLICATED, required=["name", "template"])},
            },
            required=["replicatedJobs"],
        ),
    },
    required=["apiVersion", "kind", "metadata", "spec"],
)


@pytest.mark.parametrize("spot", [False, True])
def test_gke_jobset(spot: bool) -> None:
    rendered = run("gke.sh", *GKE, *["--spot"] * spot, "--dry-run", "--", *ARGUMENTS)
    assert rendered.returncode == 0, rendered.stderr
    jobset = yaml.safe_load(rendered.stdout)
    jsonschema.validate(jobset, JOBSET)
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "elmo"}, **replicated["template"]}
    kubernetes_validate.validate(job, "1.31", strict=True)

    spec = job["spec"]
    assert spec["parallelism"] == spec["completions"] == 16 and spec["completionMode"] == "Indexed"
    pods = spec["template"]["spec"]
    selector = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "8x8",
    }
    assert pods["nodeSelector"] == selector | ({"cloud.google.com/gke-spot": "true"} if spot else {})
    assert ("tolerations" in pods) == spot
    (container,) = pods["containers"]
    assert container["command"] == ["elmo-jax"] and container["image"] == "registry.example/me/elmo_jax:1"
    assert container["args"] == [argument.replace("$", "$$") for argument in ARGUMENTS]  # $$ is Kubernetes' $
    assert container["resources"]["limits"] == container["resources"]["requests"] == {"google.com/tpu": 4}
    rules = [(r["action"], r["onExitCodes"]["values"]) for r in spec["podFailurePolicy"]["rules"] if "onExitCodes" in r]
    assert rules == [("FailJob", [2]), ("Ignore", [75, 130, 134, 143])]


def test_gke_keeps_a_line_break_in_an_argument() -> None:
    rendered = run("gke.sh", *GKE, "--dry-run", "--", "pretrain", "--config.x=two\nlines").stdout
    jobset = yaml.safe_load(rendered)
    pods = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pods["containers"][0]["args"] == ["pretrain", "--config.x=two\nlines"] and pods["shareProcessNamespace"]


def test_gke_applies_what_it_shows(tmp_path: Path) -> None:
    program(tmp_path / "kubectl", '#!/bin/sh\necho "$@" >"$(dirname "$0")/arguments"\ncat >"$(dirname "$0")/yaml"\n')
    done = run("gke.sh", *GKE, "--", *ARGUMENTS, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "arguments").read_text() == "apply -f -\n"
    assert (tmp_path / "yaml").read_text() == run("gke.sh", *GKE, "--dry-run", "--", *ARGUMENTS).stdout


def test_the_schema_sees_a_mistake() -> None:
    jobset = yaml.safe_load(run("gke.sh", *GKE, "--dry-run", "--", "pretrain").stdout)
    broken = json.loads(json.dumps(jobset).replace("FailJobSet", "FailJobset"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, JOBSET)
    template = json.loads(
        json.dumps(jobset["spec"]["replicatedJobs"][0]["template"]).replace("onExitCodes", "onExitCode")
    )
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({"apiVersion": "batch/v1", "kind": "Job", **template}, "1.31", strict=True)
