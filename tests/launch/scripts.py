"""Runs the launch scripts, and writes stand-ins for the programs that they call."""

import os
import shutil
import subprocess
from pathlib import Path

LAUNCH = Path(__file__).parents[2] / "launch"

# spaces, quotes and dollars must reach elmo-jax as they were given
ARGUMENTS = ["pretrain", "--config", "my run/a b.py", "--workdir", "gs://bucket/it's $HOME", '--config.x=$(y) "z"']

TPU = ["--name", "elmo", "--zone", "us-west4-a", "--type", "v5litepod-64", "--runtime", "v2-alpha-tpuv5-lite"]
GKE = [
    *("--name", "elmo", "--image", "registry.example/me/elmo_jax:1", "--accelerator", "tpu-v5-lite-podslice"),
    *("--topology", "8x8", "--hosts", "16", "--chips", "4"),
]

GKE_GPU = [*GKE[:4], "--accelerator", "nvidia-h100-80gb", "--hosts", "2", "--gpus", "8"]


def run(script: str, *arguments: str, scripts: Path = LAUNCH, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script, to its end."""
    command = ["bash", str(scripts / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=30)


def checkout(folder: Path) -> Path:
    """Makes a repository with the launch scripts in its one commit; returns the folder of the scripts.

    `tpu_pod.sh` refuses a checkout with changes, which that of a developer may have.
    """
    shutil.copytree(LAUNCH, folder / "launch")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=elmo", "-c", "user.email=elmo@example.org", "commit", "--quiet", "-m", "scripts")
    return folder / "launch"


def git(folder: Path, *arguments: str) -> None:
    """Runs git in a folder."""
    subprocess.run(["git", "-C", str(folder), *arguments], check=True)


def program(path: Path, text: str) -> str:
    """Makes an executable; returns its path."""
    path.write_text(text)
    path.chmod(0o755)
    return str(path)
