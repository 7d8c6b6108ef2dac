"""gke.sh: the JobSet that it makes, by the schemas of Kubernetes, with a stand-in for kubectl."""

import configparser
import json
import os
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.launch.scripts import ARGUMENTS, GKE, GKE_GPU, LAUNCH, program, run


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
    assert rules == [("FailJob", [2]), ("Ignore", [75, 129, 130, 134, 138, 143, 152])]


def test_gke_jobset_of_gpus() -> None:
    rendered = run("gke.sh", *GKE_GPU, "--dry-run", "--", *ARGUMENTS)
    assert rendered.returncode == 0, rendered.stderr
    jobset = yaml.safe_load(rendered.stdout)
    jsonschema.validate(jobset, JOBSET)
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "elmo"}, **replicated["template"]}
    kubernetes_validate.validate(job, "1.31", strict=True)
    assert jobset["metadata"] == {"name": "elmo"} and job["spec"]["parallelism"] == 2
    pods = job["spec"]["template"]["spec"]
    assert pods["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    (container,) = pods["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    connected = ["--coordinator", "elmo-slice-0-0.elmo:8476", "--processes", "2", "--process"]
    given = [argument.replace("$", "$$") for argument in ARGUMENTS]
    assert container["args"] == [*given, *connected, "$(JOB_COMPLETION_INDEX)"]


def test_the_image_has_an_extra_for_each_kind_of_device() -> None:
    extras = configparser.ConfigParser()
    extras.read(LAUNCH.parent / "setup.cfg")
    recipe = (LAUNCH / "Dockerfile").read_text()
    assert "ARG DEVICE=tpu\n" in recipe and "--build-arg DEVICE=cuda" in recipe
    bounds = extras["options.extras_require"]["tpu"].split("#")[0].strip().removeprefix("jax[tpu]")
    assert f"jax[cuda12]{bounds} " in extras["options.extras_require"]["cuda"]
    assert f"jax{bounds}\n" in extras["options"]["install_requires"]


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
