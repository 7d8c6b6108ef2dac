"""Tests `experiments/paper/supplement.py`: a biLM is fine-tuned on a task's text, and the task reads its layers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gains
import supplement
from tests.experiments import quick_paper


@pytest.mark.quick
def test_each_distinct_sentence_is_a_line() -> None:
    assert supplement.text_of([["a", "b"], ["c"], ["a", "b"]]) == "a b\nc\n"


@pytest.mark.slow
def test_a_bilm_is_fine_tuned_and_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick_paper.write_experiments(tmp_path)
    config = str(tmp_path / "experiments" / "task_sst.py")
    source, random = tmp_path / "trees.txt", np.random.default_rng(0)
    phrases = [random.choice(["good", "bad", "so", "very", "films"], 4) for _ in range(400)]
    trees = [f"({n % 5} (2 {a} ) (2 (2 {b}) (2 (2 {c}) (2 {d}))))\n" for n, (a, b, c, d) in enumerate(phrases)]
    source.write_text("".join(trees))
    (tmp_path / "dev.txt").write_text("".join(trees[:200]))
    data = [f"--config.data.{part}={source}" for part in ("train", "test")]
    data.append(f"--config.data.dev={tmp_path / 'dev.txt'}")
    given = ["--config", config, "--bilm", str(tmp_path / "bilm"), *data]
    assert supplement.main([*given, "--workdir", str(tmp_path / "tuned"), "--rates", "0.01,1e-09"]) == 0
    actual = json.loads((tmp_path / "tuned" / "supplement.json").read_text())
    # The text has five words. With the second rate only the softmax is trained.
    assert actual["after"]["0.01"] < actual["after"]["1e-09"] < actual["before"] and actual["best"] == "0.01"
    for rate in ("0.01", "1e-09"):  # the second run starts from one that trained the softmax alone
        config_of_run = json.loads((tmp_path / "tuned" / rate / "config.json").read_text())
        assert config_of_run["config"]["finetune"]["trainable"] == "all"
    assert f"perplexity on dev {actual['before']:.1f} -> {actual['after']['0.01']:.1f}" in capsys.readouterr().out
    assert (tmp_path / "tuned" / "train.txt").read_text().count("\n") > 200
    tuned = ["--tuned", str(tmp_path / "tuned" / "0.01"), "--workdir", str(tmp_path / "gains"), "--rows", "tuned"]
    assert gains.main([*given, *tuned]) == 0
    row = json.loads((tmp_path / "gains" / "gains.json").read_text())["tuned"]
    assert row["bilm"] == gains.fingerprint_of(str(tmp_path / "tuned" / "0.01"))
