"""Tests the linear classifiers of `experiments/pos_ewt_layers.py` by the real command on a small treebank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments.treebank import ROOT, run_experiment, write_folder

COMMAND = ["experiments/pos_ewt_layers.py", "--bilm", "runs/fiction", "--data", "UD_English-EWT"]
VALUES = """
import sys
sys.path.insert(0, {experiments!r})
import numpy as np
from pos_ewt_layers import features
x, mix = np.random.default_rng(0).normal(size=(5, 3, 4)).astype("f4"), np.log(np.asarray([1, 2, 5], "f4"))
expected = {{
    "characters": x[:, 0], "LSTM layer 1": x[:, 1], "LSTM layer 2": x[:, 2],
    "LSTM layer 2, its input taken away": x[:, 2] - x[:, 1],
    "all mixed": (x[:, 0] + 2 * x[:, 1] + 5 * x[:, 2]) / 8,
    "all side by side": np.concatenate([x[:, 0], x[:, 1], x[:, 2]], 1),
}}
found = features(2, True)
assert list(found) == list(expected)
for name, see in found.items():
    np.testing.assert_allclose(see(mix, x), expected[name], atol=1e-6, err_msg=name)
assert "LSTM layer 2, its input taken away" not in features(2, False)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("layers"))


def test_the_table(folder: Path) -> None:
    assert f"\npython {' '.join(COMMAND)}\n" in (ROOT / "README.md").read_text()
    printed = run_experiment(folder, *COMMAND, "--seeds", "2", "--epochs", "500")
    rows = dict(re.findall(r"^(\S.*?) {2,}(\d+\.\d\d) ± \d+\.\d\d +\d+\.\d\d ± \d+\.\d\d$", printed, re.MULTILINE))
    names = ["characters", "LSTM layer 1", "LSTM layer 2", "LSTM layer 2, its input taken away"]
    assert list(rows) == [*names, "all mixed", "all side by side"]
    # With all layers of a random biLM, the accuracy exceeds the share of the most frequent tag, which is below 40%.
    assert float(rows["all side by side"]) > 50
    pairs = ("0 and 1", "0 and 2", "1 and 2")
    assert re.search(" · ".join(rf"{pair} -?\d\.\d\d" for pair in pairs), printed)


def test_what_each_classifier_sees() -> None:
    code = VALUES.format(experiments=str(ROOT / "experiments"))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_mistake_is_one_line(folder: Path) -> None:
    command = [sys.executable, *COMMAND[:-1], "nowhere"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("pos_ewt_layers: nowhere/en_ewt-ud-train.conllu: no such file")
