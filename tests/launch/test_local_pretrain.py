"""launch/local.sh with the real command: two processes train one run."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tools.slurm import ROOT, prepare


def test_two_processes(tmp_path: Path) -> None:
    commands = prepare(tmp_path)
    environment = commands.environment() | {"ELMO_JAX": f"{sys.executable} -m elmo_jax", "PYTHONPATH": str(ROOT)}
    pretrain = ["pretrain", "--config", "small.py", "--workdir", "run", "--config.train.steps=10"]
    pretrain += ["--config.model.lstm.layers=1", "--config.model.char_cnn.filters=((1,8),)"]
    command = ["bash", str(ROOT / "launch" / "local.sh"), "2", "--", *pretrain]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["steps"] == 10 and result["devices"].startswith("2 ×")
    assert done.stdout.count("held-out perplexity after training") == 1  # of process 0 alone
