"""The language, the precision and the mixture of a training are those of what is done with its biLM."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import elmo_jax
from elmo_jax import UserError, export_bilm, tokenize
from elmo_jax.checkpoints.layout import parameter_shapes, unflatten
from elmo_jax.cli.main import main
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.prepare.options import TextOptions
from elmo_jax.embedding import word_table
from elmo_jax.runs.perplexity import Perplexity
from elmo_jax.training.evaluate_text import evaluate_text

CONFIG = ModelConfig(CharCNNConfig(4, ((1, 3), (3, 6)), 1), LSTMConfig(cells=7, projection=5))
WORDS = ["<S>", "</S>", "<UNK>", "l'", "l", "."]
FRENCH = "Il dit que l'homme dort, et que l'enfant boit. Il pleut, dit-il.\n"  # written for this test


def export(path: Path, **info: object) -> Path:
    random = np.random.default_rng(0)
    shapes = parameter_shapes(CONFIG) | {"softmax/kernel": (len(WORDS), 5), "softmax/bias": (len(WORDS),)}
    params = unflatten({name: random.normal(0, 1, shape).astype("f4") for name, shape in shapes.items()})
    export_bilm(path, CONFIG, params, WORDS, info)
    return path


@pytest.fixture
def french(tmp_path: Path) -> Path:
    return export(tmp_path / "french", language="fr")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(FRENCH * 60, encoding="utf-8")
    return path


def test_evaluate_reads_text_in_the_language_of_the_model(french: Path, text: Path, tmp_path: Path) -> None:
    of_model, of_french = (
        evaluate_text(french, [str(text)], TextOptions("raw", language=code)) for code in (None, "fr")
    )
    assert of_model.as_dict() == of_french.as_dict()
    english = evaluate_text(french, [str(text)], TextOptions("raw", language="en"))
    assert english.perplexity.forward != of_model.perplexity.forward
    without = evaluate_text(export(tmp_path / "without"), [str(text)], TextOptions("raw"))
    assert without.as_dict() == english.as_dict()


@pytest.mark.parametrize("option", ["--vocab", "--extend-vocab"])
def test_prepare_reads_text_in_the_language_of_the_model(
    french: Path, text: Path, tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["prepare", str(text), "--format", "raw", option, str(french), "--out"]
    assert main([*arguments, str(tmp_path / "corpus")]) == 0
    assert Corpus.open(tmp_path / "corpus").language == "fr" and "language" in capsys.readouterr().out
    assert main([*arguments, str(tmp_path / "english"), "--language", "en"]) == 0
    assert Corpus.open(tmp_path / "english").language == "en"


def test_tokenize_and_neighbours_use_the_language_of_the_model(
    french: Path, text: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text.write_text(FRENCH, encoding="utf-8")
    expected = "Il dit que l' homme dort , et que l' enfant boit .\nIl pleut , dit-il .\n"
    assert main(["tokenize", str(french), str(text)]) == 0
    assert capsys.readouterr().out == expected
    assert main(["tokenize", str(french), str(text), "--language", "en", "--out", str(tmp_path / "english.txt")]) == 0
    assert (tmp_path / "english.txt").read_text(encoding="utf-8") != expected
    assert main(["neighbours", str(french), str(text), "--word", "l'", "--occurrences", "1"]) == 0
    assert "que [l'] homme dort ," in capsys.readouterr().out
    bilm = elmo_jax.load_bilm(french)
    assert [" ".join(words) for words in tokenize(FRENCH, bilm)] == expected.splitlines()
    assert tokenize(FRENCH, bilm, "en") == tokenize(FRENCH) != tokenize(FRENCH, bilm)


def test_tokenized_text_stays_as_it_is(french: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = "Il pleut , dit-il .\nMoi , non .\n"
    (tmp_path / "lines.txt").write_text(given)
    assert main(["tokenize", str(french), str(tmp_path / "lines.txt")]) == 0
    assert capsys.readouterr().out == given


@pytest.mark.parametrize("code", ["zh", "ja", "th", "lo", "km", "my"])
def test_running_text_of_a_language_without_spaces_is_refused(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    model = export(tmp_path / "model", language=code)
    advice = f"running text in a language ({code}) that does not separate words by spaces; split it into words"
    for command in (
        ["prepare", str(text), "--out", str(tmp_path / "out"), "--language", code, "--format", "raw"],
        ["evaluate", str(model), "--data", str(text), "--format", "raw"],
        ["neighbours", str(model), str(text), "--word", "l'", "--format", "raw"],
        ["tokenize", str(model), str(text), "--format", "documents"],
    ):
        assert main(command) == 2
        assert advice in capsys.readouterr().err
    with pytest.raises(UserError, match="does not separate words by spaces"):
        tokenize(FRENCH, language=code)
    assert main(["evaluate", str(model), "--data", str(text), "--format", "lines"]) == 0
    assert main(["prepare", str(text), "--out", str(tmp_path / "out"), "--language", code, "--format", "lines"]) == 0


def test_mistakes_of_tokenize() -> None:
    with pytest.raises(UserError, match="text: expected a string, got list"):
        tokenize(["a"])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="without spaces between words"):
        tokenize("昨天北京下了很大的雨，所以我们都在家里看书。")
    with pytest.raises(UserError, match="language is 'German'"):
        tokenize("a", language="German")


def test_embed_warns_of_text_that_is_not_tokenized(
    french: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", str(french), str(text), str(tmp_path / "raw.hdf5")]) == 0
    printed = capsys.readouterr().err
    assert (
        f"warning: {text}: read as it is, but its commas are attached to words" in printed
        and "elmo-jax tokenize" in printed
    )
    assert main(["tokenize", str(french), str(text), "--out", str(tmp_path / "lines.txt")]) == 0
    assert main(["embed", str(french), str(tmp_path / "lines.txt"), str(tmp_path / "lines.hdf5")]) == 0
    assert "warning" not in capsys.readouterr().err


def test_long_words_are_warned_of(
    french: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    word_table._warn_of_long_words.cache_clear()
    bilm = elmo_jax.load_bilm(french)
    with caplog.at_level(logging.WARNING):
        bilm.embed([["ä" * 24, "a" * 48]])
        assert not caplog.text
        for _ in range(2):  # but once
            bilm.embed([["ä" * 24 + "a"]])
        assert caplog.text.count("some words are longer than 48 bytes") == 1
    (tmp_path / "lines.txt").write_text(f"{'a' * 49} {'b' * 48}\n")
    assert main(["evaluate", str(french), "--data", str(tmp_path / "lines.txt")]) == 0
    assert "1 words are longer than 48 bytes" in capsys.readouterr().err


def test_evaluate_uses_the_precision_of_the_training(text: Path, tmp_path: Path, capsys) -> None:
    def perplexity(model: Path, precision: str | None = None) -> float:
        return evaluate_text(model, [str(text)], TextOptions("lines"), precision=precision).perplexity.average

    rounded = export(tmp_path / "rounded", settings={"train": {"precision": "bfloat16"}})
    plain = export(tmp_path / "plain")
    assert perplexity(rounded) == perplexity(plain, "bfloat16") != perplexity(plain)
    assert perplexity(plain) == perplexity(rounded, "float32")
    command = ["evaluate", str(rounded), "--data", str(text), "--format", "lines"]
    assert main(command) == 0 and main([*command, "--precision", "float32"]) == 0
    assert f"forward {evaluate_text(plain, [str(text)], TextOptions('lines')).perplexity.forward:,.2f}" in (
        capsys.readouterr().out
    )


def test_steps_are_compared_with_the_weights_of_the_mixture() -> None:
    sources = {"news": Perplexity(100.0, 100.0, 300, 0), "law": Perplexity(4.0, 9.0, 100, 0)}
    whole = Perplexity(50.0, 50.0, 400, 0, sources)
    assert whole.score(()) == whole.average
    # by hand: exp((300 ln 100 + 100 ln 6) / 400), and with the weights exp((0.5 * 300 ln 100 + 3 * 100 ln 6) / 450)
    assert whole.score([("law", 1.0)]) == pytest.approx(49.492, rel=1e-4)
    assert whole.score([("news", 0.5), ("law", 3.0)]) == pytest.approx(15.326, rel=1e-4)
    assert whole.score([("news", 0.0)]) == pytest.approx(6.0)
    assert whole.score([("news", 0.0), ("law", 0.0)]) == whole.average


def test_commands_work_where_transfers_are_forbidden(french: Path, text: Path) -> None:
    command = [sys.executable, "-m", "elmo_jax", "neighbours", french, text, "--word", "l'", "--among", "uses"]
    ended = subprocess.run(command, env=os.environ | {"JAX_TRANSFER_GUARD": "disallow"}, capture_output=True, text=True)
    assert ended.returncode == 0 and "[l'] homme dort" in ended.stdout, ended.stderr
