"""Tests folders, settings and texts that `prepare` refuses, and what it prints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from elmo_jax.data.prepare.options import PrepareOptions
from elmo_jax.data.prepare.pipeline import prepare
from elmo_jax.errors import UserError
from tests.data.prepare.corpora import files, make, refusal


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Forty documents; number i has i % 3 + 1 sentences, with words that only it has and words that all have."""
    folder = tmp_path / "documents"
    folder.mkdir()
    for i in range(40):
        lines = [f"all words of document d{i} , line {k}" for k in range(i % 3 + 1)]
        (folder / f"{i:02}.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_repeated_does_nothing(documents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = documents.parent / "out"
    make(out, documents)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    again = prepare([str(documents)], out, PrepareOptions(workers=2))
    assert again.path == out and {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before
    assert "already prepared from this text with these settings; nothing to do" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_count": 3}, "min_count 2 there, 3 now"),
        ({"vocabulary_size": 9}, "vocabulary_size None there, 9 now; min_count 2 there, 1 now"),
        ({"heldout_fraction": 0.1}, "heldout_fraction 0.05 there, 0.1 now"),
        ({"format": "raw"}, "its text, format or name differs"),
    ],
)
def test_other_settings_are_refused(documents: Path, settings: dict[str, object], message: str) -> None:
    out = documents.parent / "out"
    make(out, documents)
    before = files(out)
    assert message in refusal(out, documents, **settings)
    assert files(out) == before


def test_another_language_is_refused(documents: Path) -> None:
    out = documents.parent / "out"
    make(out, documents, language="de")
    assert "language de there, en now" in refusal(out, documents)
    make(documents.parent / "english", documents)
    assert "language en there, de now" in refusal(documents.parent / "english", documents, language="de")


def test_other_text_is_refused(documents: Path) -> None:
    out = documents.parent / "out"
    make(out, documents)
    (documents.parent / "other.txt").write_text("another text\n")
    assert "sources: 1 there, 2 now" in refusal(out, documents, documents.parent / "other.txt")
    (documents / "07.txt").write_text("All words of document d7 , line 0\nall words of document d7 , line 1\n")
    assert f"{documents}: its text, format or name differs" in refusal(out, documents)


def test_folder_with_something_else_is_left_alone(documents: Path) -> None:
    assert "holds something that is not a corpus" in refusal(documents, documents / "*.txt")
    assert len(files(documents)) == 40
    (documents.parent / "empty").mkdir()
    assert make(documents.parent / "empty", documents).tokens("train")


# Bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocabulary_size": 3}, "expected 4 or more"),
        ({"heldout_fraction": 0.7}, "expected 1e-06 to 0.5, 0 for none, or 1 for all"),
        ({"heldout_fraction": -0.1}, "expected 1e-06 to 0.5"),
        ({"heldout_fraction": 1e-320}, "expected 1e-06 to 0.5"),
        ({"vocabulary_file": "v.txt", "min_count": 2}, "leave out the vocabulary size"),
        ({"heldout_sources": ["no.txt"]}, "no.txt: no such file"),
    ],
)
def test_bad_settings_are_one_line(documents: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as error:
        make(documents.parent / "out", documents, **settings)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert sorted(p.name for p in documents.parent.iterdir()) == ["documents"]


def test_bad_text_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("fine\n" * 300_000)
    (tmp_path / "b.txt").write_bytes(b"fine\n" * 200_000 + b"caf\xe9\n" + b"fine\n" * 400_000)
    names = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    for workers in (1, 2):
        with pytest.raises(UserError, match="b.txt, line 200001: byte 0xe9 is not UTF-8"):
            prepare(names, tmp_path / "out", PrepareOptions(workers=workers, progress=False))
    (tmp_path / "spaces.txt").write_text(" \n\n<S> </S>\n")
    assert "spaces.txt: no words in the text" in refusal(tmp_path / "out", tmp_path / "spaces.txt")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "b.txt", "spaces.txt"]


@pytest.mark.parametrize(
    ("source", "words", "heldout"), [("documents", 400, 1), pytest.param("sotu", 2_000_000, 12, marks=pytest.mark.slow)]
)
def test_output_off_a_terminal_is_a_few_plain_lines(documents: Path, source: str, words: int, heldout: int) -> None:
    code = (
        "import sys; from elmo_jax.data.prepare.options import PrepareOptions;"
        "from elmo_jax.data.prepare.pipeline import prepare;"
        "from elmo_jax.data.prepare.pipeline import describe;"
        "print(describe(prepare([sys.argv[1]], 'out', PrepareOptions(workers=1))));"
        "assert not {'tensorflow', 'jax', 'pandas', 'grain'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, source]
    done = subprocess.run(command, cwd=documents.parent, check=True, capture_output=True, text=True)
    plain = ("documents: read as lines", "reading the text", "writing the blocks")
    assert all(line.startswith(plain) for line in done.stderr.splitlines())
    report = json.loads((documents.parent / "out" / "corpus.json").read_text())
    assert report["splits"]["train"]["words"] > words and report["splits"]["heldout"]["documents"] >= heldout
    assert f"{report['splits']['train']['words']:,}" in done.stdout
