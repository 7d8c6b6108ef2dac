"""launch/local.sh with the real command: two processes train one run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.pods import prepared
from tests.launch.scripts import LAUNCH


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    commands = prepared(tmp_path)
    there = {"ELMO_JAX": f"{sys.executable} -m elmo_jax", "PYTHONPATH": str(LAUNCH.parent)}
    pretrain = ["pretrain", "--config", "small.py", "--workdir", "run", "--config.train.steps=10"]
    pretrain += ["--config.model.lstm.layers=1", "--config.model.char_cnn.filters=((1,8),)"]
    command = ["bash", str(LAUNCH / "local.sh"), "2", "--", *pretrain]
    done = subprocess.run(command, cwd=tmp_path, env=commands.environment() | there, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["steps"] == 10 and result["devices"].startswith("2 ×")
    assert done.stdout.count("held-out perplexity after training") == 1  # of process 0 alone
