"""The program of `elmo-jax export --format jax`, run in a process that cannot import elmo_jax."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from elmo_jax.cli.main import main
from elmo_jax.embedding.bilm import load_bilm
from tests.analysis.texts import write_bilm

SERVED = """
import importlib.util, json, sys
sys.modules["elmo_jax"] = None  # an import of it fails
sys.path.insert(0, sys.argv[1])
import jax, numpy as np
from characters import encode_chars

program = jax.export.deserialize(bytearray(open(sys.argv[1] + "/bilm.jax", "rb").read()))
for number, sentences in enumerate(json.loads(sys.argv[2])):
    ids = np.zeros((len(sentences), max(map(len, sentences)), program.in_avals[0].shape[2]), np.int32)
    for row, words in enumerate(sentences):
        ids[row, : len(words)] = encode_chars(words, ids.shape[2]) + 1
    layers, mask = program.call(ids)
    np.savez(f"{sys.argv[1]}/{number}.npz", layers=layers, mask=mask)
"""
BATCHES = [[["a", "bank"]], [["one", "naïve", "longwordthatiscutoffsomewhere"], ["x"], ["Ω", "<S>"]]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("standalone")
    write_bilm(folder / "bilm", 0)
    assert main(["export", str(folder / "bilm"), "--format", "jax", "--out", str(folder / "served")]) == 0
    return folder / "served"


def test_it_gives_the_vectors_of_embed_without_this_package(program: Path) -> None:
    command = [sys.executable, "-c", SERVED, str(program), json.dumps(BATCHES)]
    subprocess.run(command, check=True, cwd=program, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
    bilm = load_bilm(program.parent / "bilm")
    for number, sentences in enumerate(BATCHES):
        layers, mask, _ = bilm.embed(sentences)
        actual = np.load(program / f"{number}.npz")
        assert_array_equal(actual["mask"], mask)
        assert_allclose(actual["layers"], layers, atol=2e-6)


def test_it_is_lowered_for_all_platforms(program: Path) -> None:
    actual = jax.export.deserialize(bytearray((program / "bilm.jax").read_bytes()))
    assert actual.platforms == ("cpu", "cuda", "tpu")


def test_mistakes(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["export", str(program.parent / "bilm"), "--format", "jax"]
    for more, expected in (
        (["--out", str(program)], f"{program}: exists; choose another name or remove it"),
        (["--dtype", "float16", "--out", "x"], "--dtype: has no effect with --format jax; leave it out"),
        ([], "--out: give the folder"),
    ):
        assert main([*command, *more]) == 2
        assert expected in capsys.readouterr().err
