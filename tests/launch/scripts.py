"""Runs the launch scripts, and writes stand-ins for the programs that they call."""

import os
import subprocess
from pathlib import Path

LAUNCH = Path(__file__).parents[2] / "launch"


# blanks, quotes and dollars must reach elmo-jax as they were given
ARGUMENTS = ["pretrain", "--config", "my run/a b.py", "--workdir", "gs://bucket/it's $HOME", '--config.x=$(y) "z"']


TPU = ["--name", "elmo", "--zone", "us-west4-a", "--type", "v5litepod-64", "--runtime", "v2-alpha-tpuv5-lite"]


GKE = ["--name", "elmo", "--image", "registry.example/me/elmo_jax:1", "--accelerator", "tpu-v5-lite-podslice"]


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script, to its end."""
    command = ["bash", str(LAUNCH / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=30)


def program(path: Path, text: str) -> str:
    """Makes an executable; returns its path."""
    path.write_text(text)
    path.chmod(0o755)
    return str(path)
