"""A run belongs to its biLM, its examples, its word vectors and its settings: a launch with others changes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from elmo_jax.errors import UserError
from tests.tasks.tagging import train, write_problem, write_sentences

SETTINGS = ("train.epochs=1", "seeds=(0,)")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A problem and a run without word vectors."""
    folder = tmp_path_factory.mktemp("trained")
    write_problem(folder)
    words = ("the", "dog", "sees", "a", "tree")
    (folder / "vectors.txt").write_text("".join(f"{word} {n} 1\n" for n, word in enumerate(words)))
    train(folder, folder / "run", *SETTINGS)
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path, dirs_exist_ok=True)


def contents(run: Path) -> dict[str, bytes]:
    """Returns the content of every file of a run but the lock."""
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def refused(folder: Path, *more: str) -> str:
    """Returns the one line with which a second launch is refused, after which the run's files are as they were."""
    before = contents(folder / "run")
    with pytest.raises(UserError, match="was started with other settings") as error:
        train(folder, folder / "run", *more)
    assert contents(folder / "run") == before and "\n" not in str(error.value)
    return str(error.value)


def test_other_examples_are_refused(folder: Path) -> None:
    for name in ("train", "dev", "test"):
        path = folder / f"{name}.conllu"
        path.rename(folder / f"{name}.moved")
        write_sentences(path, 12, seed=9)
        assert f"fingerprint.data.{name} was" in refused(folder, *SETTINGS)
        assert f"fingerprint.data.{name} was" in refused(folder, *SETTINGS, f"data.{name}={path}")
        (folder / f"{name}.moved").rename(path)
    moved = folder / "elsewhere.conllu"
    (folder / "dev.conllu").rename(moved)
    train(folder, folder / "run", *SETTINGS, f"data.dev={moved}")  # the same examples in another file


@pytest.mark.parametrize("setting", ["data.train_fraction=0.5", "data.column=xpos", "word_vectors.dim=4"])
def test_other_settings_of_the_data_are_refused(folder: Path, setting: str) -> None:
    path = folder / "train.conllu"
    if setting.endswith("xpos"):  # the column has other tags, so the files are other examples too
        for name in ("train", "dev", "test"):
            path = folder / f"{name}.conllu"
            lines = [line.split("\t") for line in path.read_text().splitlines()]
            columns = [line[:4] + line[3:4] + line[5:] if len(line) > 1 else line for line in lines]
            path.write_text("".join("\t".join(line) + "\n" for line in columns))
    assert setting.split("=")[0] in refused(folder, *SETTINGS, setting)


def test_another_bilm_is_refused(folder: Path) -> None:
    assert "fingerprint.bilm was None" in refused(folder, *SETTINGS, f"bilm={folder / 'bilm'}")


def test_other_word_vectors_are_refused(folder: Path) -> None:
    frozen = (f"word_vectors.path={folder / 'vectors.txt'}", "word_vectors.trainable=False", "word_vectors.dim=0")
    shutil.rmtree(folder / "run")
    train(folder, folder / "run", *SETTINGS, *frozen)
    train(folder, folder / "run", *SETTINGS, *frozen)
    text = (folder / "vectors.txt").read_text()
    (folder / "vectors.txt").write_text(text.replace("dog 1 1", "dog 1 2"))
    assert "fingerprint.word_vectors was" in refused(folder, *SETTINGS, *frozen, "seeds=(0,1)")


def test_word_vectors_added_later_are_refused(folder: Path) -> None:
    shutil.rmtree(folder / "run")
    train(folder, folder / "run", *SETTINGS, "word_vectors.dim=2")
    vectors = f"word_vectors.path={folder / 'vectors.txt'}"
    assert "fingerprint.word_vectors was" in refused(folder, *SETTINGS, "word_vectors.dim=2", vectors)
