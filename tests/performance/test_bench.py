"""Tests `python -m performance` in a real process: every part at the tiny size, on a short text."""

import argparse
import json
import os
import subprocess
import sys

import pytest

from elmo_jax.config import Config
from elmo_jax.data.prepare.options import PrepareOptions
from elmo_jax.data.prepare.pipeline import prepare
from elmo_jax.distributed.cpu import multiplies_bfloat16
from elmo_jax.errors import UserError
from elmo_jax.settings import from_dict, to_dict
from performance import sizes
from performance.__main__ import SIZES, measured
from tests.environment import xla_flags

NUMBERS = {
    *("tokens_per_second", "matmul_gflops", "tokens_per_second_per_matmul_gflops", "tokens", "seconds"),
    *("model_gflops", "share_of_matmul", "peak_memory_bytes", "compile_seconds", "rows"),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    lines = [" ".join(f"w{(7 * i + 3 * j) % 400}" for j in range(3 + i % 40)) for i in range(400)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    (folder / "heldout.txt").write_text("\n".join(lines[:70]) + "\n")
    prepare(
        [str(folder / "text.txt")],
        folder / "corpus",
        PrepareOptions(heldout_sources=[str(folder / "heldout.txt")], workers=1),
    )
    return folder / "corpus"


def bench(corpus, *arguments):
    environment = os.environ | {"XLA_FLAGS": xla_flags(1)}
    command = [sys.executable, "-m", "performance", "--corpus", str(corpus), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)


@pytest.mark.slow
def test_the_command_measures_what_its_figures_say(corpus, tmp_path):
    file = tmp_path / "bench.json"
    parts = ("train", "infer", "embed", "evaluate", "data", "start")
    of_tasks = ("task/pos",)
    ended = bench(corpus, "--sizes", "tiny", "--seconds", 0.1, "--json", file, "--profile", tmp_path / "traces")
    assert ended.returncode == 0, ended.stderr
    actual = json.loads(file.read_text())
    rounded = [f"{part}/tiny/bfloat16" for part in ("train", "infer") if multiplies_bfloat16()]
    assert sorted(actual) == sorted([*(f"{part}/tiny" for part in parts), *of_tasks, *rounded])
    assert all(actual[name]["precision"] == "bfloat16" for name in rounded)
    assert actual["infer/tiny"]["tokens_per_second_of_known_words"] > 0 and actual["start/tiny"]["seconds_vectors"] > 0
    for name, numbers in actual.items():
        assert numbers.keys() >= NUMBERS, name
        # batches are the host's work, and a start is timed from outside
        uncounted = (
            {"model_gflops", "share_of_matmul", "compile_seconds"}
            if name in ("data/tiny", "start/tiny", *of_tasks)
            else set()
        )
        assert all(numbers[key] > 0 for key in NUMBERS - uncounted), numbers
        speed = numbers["tokens"] / numbers["seconds"]
        assert numbers["tokens_per_second"] == pytest.approx(speed)
        assert numbers["tokens_per_second_per_matmul_gflops"] == pytest.approx(speed / numbers["matmul_gflops"])
        assert numbers["share_of_matmul"] == pytest.approx(numbers["model_gflops"] / numbers["matmul_gflops"])
        assert name in ended.stdout
    assert actual["train/tiny"]["tokens"] == 64 * 20
    assert actual["infer/tiny"]["tokens"] == sum(3 + i % 40 for i in range(70))
    assert actual["embed/tiny"]["tokens"] == actual["infer/tiny"]["tokens"]
    assert actual["embed/tiny"]["devices_used"] == 1
    assert actual["evaluate/tiny"]["tokens"] == sum(4 + i % 40 for i in range(70))  # each sentence's end mark too
    assert actual["start/tiny"]["seconds_warm"] > 0 and actual["start/tiny"]["seconds_cold"] > 0
    for part in ("train", "infer", "evaluate"):
        assert list((tmp_path / "traces" / f"{part}_tiny").rglob("*.xplane.pb")), part


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--parts", "train", "fly"), "--parts: invalid choice: 'fly'"),
        (("--sizes", "huge"), "--sizes: invalid choice: 'huge'"),
        (("--sizes", "small", "--parts", "start"), "start is measured at the tiny size only"),
        (("--corpus", "nowhere"), "nowhere: not a prepared corpus; make one with: elmo-jax prepare"),
    ],
)
def test_a_mistake_is_told_in_one_line(corpus, arguments, message):
    ended = bench(corpus, *arguments)
    assert ended.returncode == 2 and not ended.stdout
    lines = ended.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("performance: ") and message in lines[0]


@pytest.mark.parametrize(("status", "reason"), [(2, "see the line above"), (-9, "its process ended with -9")])
def test_a_part_that_fails(corpus, monkeypatch, status, reason):
    """A mistake has printed its own line; a part that was killed has not."""
    monkeypatch.setattr(subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, status))
    with pytest.raises(UserError, match=f"^train/tiny: could not be measured; {reason}$"):
        measured("train/tiny", argparse.Namespace(corpus=corpus, seconds=1.0, rows=None, profile=None))


def test_the_settings_of_every_size_are_valid():
    assert tuple(sizes.SIZES) == SIZES
    for size in sizes.SIZES.values():
        config = size.config(size.rows, "float32", "data/sotu")
        assert from_dict(to_dict(config), Config) == config
