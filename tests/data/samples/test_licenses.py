"""The licences: headers, languages, and that no version of a held-out text is trained on."""

import importlib.metadata
import re
from pathlib import Path

import pytest

from elmo_jax.data.corpus import Corpus
from elmo_jax.data.prepare.options import PrepareOptions
from elmo_jax.data.prepare.pipeline import prepare
from elmo_jax.data.prepare.text import Format
from elmo_jax.data.samples.licenses import Licenses, license_text, open_licenses
from elmo_jax.data.samples.near_duplicates import near_duplicates
from elmo_jax.errors import UserError

HEADER = "---\nkey: mine\nnotes: not a word of this\n    --- nor of this\n{more}---\n"


def write(folder: Path, name: str, text: str, more: str = "") -> Path:
    path = folder / f"{name}.LICENSE"
    path.write_text(HEADER.format(more=more) + text)
    return path


def test_header_is_left_out(tmp_path: Path) -> None:
    line, text = license_text(write(tmp_path, "mine", "\nYou may use it.\n---\nAnd copy it.\n"))
    assert text == "\nYou may use it.\n---\nAnd copy it.\n"
    assert line == 6  # of the file


@pytest.mark.parametrize(("more", "kept"), [("language: fr\n", False), ("language: en\n", True), ("", True)])
def test_english_only(tmp_path: Path, more: str, kept: bool) -> None:
    assert license_text(write(tmp_path, "mine", "Text.", more))[1] == ("Text." if kept else "")


def test_header_without_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.LICENSE"
    path.write_text("---\nkey: mine\n---")
    assert license_text(path)[1] == ""


def test_no_header(tmp_path: Path) -> None:
    path = tmp_path / "mine.LICENSE"
    path.write_text("You may use it.")
    with pytest.raises(UserError, match=r"mine.LICENSE, line 1: expected a header"):
        license_text(path)


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(UserError, match="pip install --no-deps licensedcode-data"):
        open_licenses(None)


def license_words(number: int, version: int = 0) -> str:
    """A text of sixty words that no other has; its versions differ in one of them."""
    words = [f"word{number}x{i}" for i in range(60)]
    words[7] += f"v{version}"
    return " ".join(words) + "."


def test_versions_are_held_out_or_trained_on_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of forty licences has three versions, whose names are far apart in the alphabet."""
    paths = [
        write(tmp_path, f"{version}-{number:02}", license_words(number, version))
        for version in range(3)
        for number in range(40)
    ]
    too_short = write(tmp_path, "9-short", "See the licence.")
    source = Licenses((*sorted(paths), too_short), Format.RAW)
    assert source.has_documents
    assert sum(piece.starts_document for piece in source.pieces()) == 40
    monkeypatch.setattr("elmo_jax.data.prepare.sources.open_licenses", lambda format: source)
    corpus = prepare(["licenses"], tmp_path / "corpus", PrepareOptions(heldout_fraction=0.1, workers=1, progress=False))
    assert corpus.report["splits"]["heldout"]["documents"] == 4
    numbers = {split: licences_of(corpus, split) for split in ("train", "heldout")}
    assert len(numbers["heldout"]) == 4 and len(numbers["train"]) == 36
    assert not numbers["heldout"] & numbers["train"]
    assert corpus.report["splits"]["heldout"]["words"] == 4 * 3 * 61  # a full stop each


def licences_of(corpus: Corpus, split: str) -> set[str]:
    words, blocks = corpus.words(), corpus.blocks(split)
    text = " ".join(words[i] for k in range(len(blocks)) for i in blocks[k])
    return set(re.findall(r"word(\d+)x", text))


def test_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the real texts: known versions of one licence share a document, other licences do not."""
    found = open_licenses(None)
    assert len(found.paths) > 2000 and found.format is Format.RAW
    chosen = ("apache-1.1", "apache-2.0", "mpl-1.0", "mpl-1.1", "gpl-1.0", "gpl-2.0", "cecill-2.0-fr", "artistic-2.0")
    paths = tuple(path for path in found.paths if path.stem in chosen)
    assert {path.stem for path in paths} >= {"mpl-1.0", "mpl-1.1", "gpl-2.0", "apache-2.0"}
    source = Licenses(paths, Format.RAW)
    first = [piece.name for piece in source.pieces() if piece.starts_document]
    others = {Path(piece.name).stem for piece in source.pieces() if not piece.starts_document}
    assert "mpl-1.1" in others and "apache-2.0" not in others
    assert len(first) == sum(piece.starts_document for piece in source.pieces())
    for piece in source.pieces():
        assert b"spdx_license_key:" not in piece.data
    texts = [license_text(path)[1] for path in paths if path.stem in ("gpl-2.0", "apache-2.0")]
    assert near_duplicates(texts).tolist() == [0, 1]
