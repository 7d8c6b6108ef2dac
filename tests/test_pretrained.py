"""The biLMs that come with the package: small, documented, and found by name by every command."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import elmo_jax
from elmo_jax.cli.main import main
from elmo_jax.pretrained import packaged_names, packaged_path


def test_there_is_an_english_one() -> None:
    assert packaged_names() == ["english"]
    assert packaged_path("english") is not None and packaged_path("klingon") is None


def test_it_says_what_it_is_made_of() -> None:
    bilm = elmo_jax.load_bilm("english")
    assert all(source["licence"] and source["from"] and source["text"] for source in bilm.info["sources"])
    assert bilm.info["heldout_perplexity"]["average"] < 1000 and bilm.info["tokens_seen"] > 1_000_000
    assert "softmax" not in bilm.params and bilm.vocabulary is None


def test_a_word_has_other_vectors_in_other_contexts() -> None:
    bilm = elmo_jax.load_bilm("english")
    sentences = ["He sat on the bank of the river .", "They slept on the bank of a stream .", "The bank raised rates ."]
    layers, _, _ = bilm.embed([sentence.split() for sentence in sentences])
    river, stream, money = (layers[row, 2, sentence.split().index("bank")] for row, sentence in enumerate(sentences))

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    assert cosine(river, stream) > cosine(river, money)
    np.testing.assert_allclose(layers[0, 0, 4], layers[2, 0, 1], atol=1e-5)  # the token layer knows no context


def test_the_command_finds_it_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sentences.txt").write_text("The cat sat .\n")
    assert main(["embed", "english", "sentences.txt", "vectors.hdf5", "--processes", "1"]) == 0
    with h5py.File(tmp_path / "vectors.hdf5") as file:
        assert file["0"].shape == (3, 4, 512)
    assert main(["neighbours", "english", "sentences.txt", "--word", "cat", "--number", "1"]) == 0
    (tmp_path / "english").mkdir()
    assert main(["export", "english", "--out", "out"]) == 2
    assert "the name of a packaged biLM, and also of" in capsys.readouterr().err
