"""Tests CoVe: its training on a made-up language, its vectors, and the scripts that take it like a biLM."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
import table6

import gains
import grid
from cove import train as cove
from cove.model import Encoder, Translator
from cove.vectors import NAME, open_cove, read
from elmo_jax import UserError
from elmo_jax.checkpoints.layout import unflatten
from elmo_jax.embedding.embed import embed_texts
from elmo_jax.tasks.core.elmo_vectors import unpack_layers
from tests.analysis.treebank import plain_sentences
from tests.tasks.tagging import overrides, write_problem

ENGLISH = "the a boat lake sinks waits".split()
DIM, SIZE = 4, 12
TASK = Path(gains.__file__).parents[1] / "task_pos.py"


def command(folder: Path, workdir: str = "cove", *more: str) -> list[str]:
    options = {"--data": folder, "--glove": folder / "glove.txt", "--workdir": folder / workdir}
    given = [str(word) for option in options.items() for word in option]
    return [*given, "--size", str(SIZE), "--epochs", "3", *more]


@pytest.fixture(scope="module", autouse=True)
def settings_of_a_small_problem() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cove, "BATCH", 32)
        patch.setattr(cove, "SHAPES", 1)
        patch.setattr(cove, "RATE", 3e-2)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained CoVe in the folder `cove`; German has a word for each English one, in the reverse order."""
    folder, random = tmp_path_factory.mktemp("cove"), np.random.default_rng(0)
    for name, number in zip(cove.PARTS.values(), (1200, 60, 60), strict=True):
        pairs = [random.choice(ENGLISH, random.integers(2, 6)).tolist() for _ in range(number)]
        (folder / f"{name}.en").write_text("".join(f"{' '.join(words)}\n" for words in pairs))
        (folder / f"{name}.de").write_text("".join(f"{' '.join(f'{w}en' for w in words[::-1])}\n" for words in pairs))
    vectors = {word: random.normal(size=DIM).round(3) for word in ENGLISH}
    (folder / "glove.txt").write_text("".join(f"{w} {' '.join(map(str, v))}\n" for w, v in vectors.items()))
    assert cove.main(command(folder)) == 0
    return folder


@pytest.mark.slow
def test_training_learns_to_translate_and_resumes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = json.loads((folder / "cove" / "result.json").read_text())
    assert result["history"] == sorted(result["history"], reverse=True) and result["german_words"] == len(ENGLISH)
    # Without the English sentence, 3.5 of 6 words and one of 4 ends are guessed in 4.5 steps: a perplexity of 5.5.
    assert result["dev"] == result["history"][-1] < 2.5 and result["test"] < 2.5
    epoch = cove.Training.epoch

    def stopped(*arguments: object) -> object:
        if arguments[-1] == 2:
            raise KeyboardInterrupt
        return epoch(*arguments)

    monkeypatch.setattr(cove.Training, "epoch", stopped)
    with pytest.raises(KeyboardInterrupt):
        cove.main(command(folder, "resumed"))
    monkeypatch.setattr(cove.Training, "epoch", epoch)
    assert cove.main(command(folder, "resumed")) == 0
    assert json.loads((folder / "resumed" / "result.json").read_text()) == result


@pytest.mark.slow
def test_a_saved_encoder_gives_the_same_vectors(folder: Path) -> None:
    model, glove = open_cove(str(folder / "cove")), cove.read_vectors(str(folder / "glove.txt"))
    assert model is not None and model.config.lstm.projection == SIZE and open_cove(str(folder)) is None
    layers, mask, _ = model.embed([["The", "okapi", "sinks"], [], ["a"] * 20])
    assert layers.shape == (3, 3, 20, 2 * SIZE) and mask.sum(axis=1).tolist() == [3, 0, 20]
    words = np.stack([glove["the"], np.zeros(DIM), glove["sinks"]]).astype("f4")
    zeros = np.zeros((3, SIZE - DIM))
    np.testing.assert_array_equal(layers[0, 0, :3], np.concatenate([words, zeros, words, zeros], axis=1))
    params = unflatten(read(folder / "cove" / NAME)[0])
    expected = Encoder(SIZE).apply({"params": params["encoder"]}, words[None], np.ones((1, 3), bool))
    np.testing.assert_allclose(layers[0, 1:, :3], np.concatenate(expected), atol=1e-5)
    assert not layers[:, 1:].swapaxes(1, 2)[~mask].any()
    np.testing.assert_allclose(model.embed([["a"] * 20])[0][0], layers[2], atol=1e-5)
    sentences = [["The", "okapi"], ["a"] * 20, *([["sinks"]] * 70)]  # as tasks store them, in the order of the text
    ((_, stored, finite),) = embed_texts(model.engine, [("text", sentences)], "float32")
    layers, mask, _ = model.embed(sentences)
    np.testing.assert_allclose(
        unpack_layers(stored[None], model.config)[0], layers.swapaxes(1, 2)[mask].swapaxes(0, 1), atol=1e-5
    )
    assert finite.all() and len(stored) == 92


def test_attention_ignores_padding() -> None:
    random, model = np.random.default_rng(0), Translator(SIZE, 9)
    vectors, german = random.normal(size=(2, 3, DIM)), random.integers(1, 9, (2, 5))
    params = jax.jit(model.init)(jax.random.key(0), vectors, np.ones((2, 3), bool), german)
    padded = np.concatenate([vectors, random.normal(size=(2, 4, DIM))], axis=1)
    mask = np.arange(7)[None].repeat(2, 0) < 3
    apply = jax.jit(model.apply)
    losses = apply(params, vectors, mask[:, :3], german)
    np.testing.assert_allclose(apply(params, padded, mask, german), losses, atol=1e-5)
    # Every word depends on the English sentence and on the words before it, but not on those after it.
    assert (abs(apply(params, 2 * vectors, mask[:, :3], german) - losses) > 1e-5).all()
    german[:, 3] = german[:, 3] % 8 + 1
    changed = abs(apply(params, vectors, mask[:, :3], german) - losses) > 1e-5
    assert not changed[:, :3].any() and changed[:, 3:].all()


@pytest.mark.slow
def test_the_scripts_of_the_tables_take_it_like_a_bilm(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "ewt").mkdir()
    for seed, (part, number) in enumerate({"train": 70, "dev": 9, "test": 8}.items()):
        (folder / "ewt" / f"en_ewt-ud-{part}.conllu").write_text(
            plain_sentences(number, seed).replace("\t_\t_\t0", "\tTAG\t_\t0")
        )
    given = ["--bilm", str(folder / "cove"), "--ewt", str(folder / "ewt"), "--out", str(folder / "out"), "--quick"]
    assert table6.main([*given, "--more"]) == 0
    printed = capsys.readouterr().out
    assert "cove, EWT UPOS: biLM, second layer: " in printed
    entries = [json.loads(path.read_text()) for path in (folder / "out" / "table6").iterdir()]
    assert len({entry["job"]["view"] for entry in entries}) == 5 and "without its input" not in printed


@pytest.mark.slow
def test_a_row_of_the_tasks(folder: Path, tmp_path: Path) -> None:
    write_problem(tmp_path)
    given = ["--config", str(TASK), "--bilm", "english", "--workdir", str(tmp_path / "gains"), "--rows", "cove+last"]
    settings = overrides(tmp_path, "seeds=(0,)", "train.epochs=1")
    assert gains.main([*given, "--cove", str(folder / "cove"), *settings]) == 0
    row = json.loads((tmp_path / "gains" / "gains.json").read_text())["cove+last"]
    assert row["bilm"] == open_cove(str(folder / "cove")).vectors_fingerprint


@pytest.mark.slow
def test_mistakes_are_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def message(*more: str, workdir: str = "new", data: Path = folder) -> str:
        assert cove.main([*command(folder, workdir), *more, "--data", str(data)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "state.safetensors: was trained with other options" in message("--size", "13", workdir="cove")
    assert "--size: expected at least 4" in message("--size", "3")
    for path in folder.glob("*.??"):
        shutil.copy(path, tmp_path)
    (tmp_path / "glove.txt").write_text("okapi 1 2\n")
    assert "has none of the English words" in message("--glove", str(tmp_path / "glove.txt"))
    (tmp_path / "val.de").write_text("aen\n")
    assert "val.en: has 60 lines, but val.de has 1" in message(data=tmp_path)
    (tmp_path / "val.de").unlink()
    assert "val.de: cannot be read (No such file or directory)" in message(data=tmp_path)
    with pytest.raises(SystemExit, match="2"):
        gains.main(["--config", str(TASK), "--bilm", "english", "--workdir", str(tmp_path), "--rows", "cove"])
    assert "--cove: the row cove needs the workdir of cove/train.py, got ''" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        grid.main(["cove", "--bilm", "english", "--cove", str(tmp_path)])
    assert f"the row cove+last needs the workdir of cove/train.py, got '{tmp_path}'" in capsys.readouterr().err
    damaged = bytearray((folder / "cove" / NAME).read_bytes())
    damaged[-1] ^= 1
    (tmp_path / NAME).write_bytes(damaged)
    with pytest.raises(UserError, match="or damaged .its numbers have changed.; delete it"):
        open_cove(str(tmp_path))
