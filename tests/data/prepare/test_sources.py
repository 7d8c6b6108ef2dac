"""Tests which files a source has: links, files that are read twice, pipes, and what else is in a folder."""

import gzip
import os
import threading
from pathlib import Path

import pytest

from tests.data.prepare.corpora import files, make, read, refusal


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder of twenty documents of one sentence each."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(20):
        (folder / f"{i:02}.txt").write_text(f"the only words of document d{i}\n")
    return folder


def test_a_file_of_a_folder_that_is_named_again_is_refused(texts: Path) -> None:
    again = texts / "19.txt"
    expected = f"{again}: would be read twice, for {again} and for {texts}; name it once"
    assert expected in refusal(texts.parent / "out", texts, again)
    assert "would be read twice" in refusal(texts.parent / "out", texts, texts / "1*.txt")
    assert "would be read twice" in refusal(texts.parent / "out", texts, heldout_sources=[str(again), str(again)])


def test_a_link_to_a_file_of_the_same_folder_is_refused(texts: Path) -> None:
    (texts / "00_again.txt").symlink_to("19.txt")
    expected = f"{texts / '19.txt'}: would be read twice, for {texts} and as {texts / '00_again.txt'} for {texts}"
    assert expected in refusal(texts.parent / "out", texts)


def test_a_compressed_copy_and_a_hard_link_are_the_same_text(texts: Path) -> None:
    copy = texts.parent / "19.txt"
    os.link(texts / "19.txt", copy)
    assert "19.txt: would be read twice, for" in refusal(texts.parent / "out", texts, copy)
    copy.unlink()
    (texts / "19.txt.GZ").write_bytes(gzip.compress((texts / "19.txt").read_bytes()))
    expected = f"{texts / '19.txt.GZ'}: is 19.txt, compressed differently; keep one of them"
    assert expected in refusal(texts.parent / "out", texts)
    corpus = make(texts.parent / "out", texts, heldout_sources=[str(texts / "19.txt.GZ")])
    assert read(corpus, "heldout") == ["the only words of document d19"] and len(read(corpus, "train")) == 19


def test_held_out_files_are_not_also_trained_on(texts: Path) -> None:
    corpus = make(texts.parent / "out", texts, heldout_sources=[str(texts / "19.txt")])
    assert read(corpus, "heldout") == ["the only words of document d19"] and len(read(corpus, "train")) == 19


def test_linked_folders_are_read(texts: Path) -> None:
    elsewhere = texts.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "more.txt").write_text("linked words\n" * 3)
    (texts / "linked").symlink_to(elsewhere)
    corpus = make(texts.parent / "out", texts)
    assert "linked words" in read(corpus, "train") + read(corpus, "heldout")


def test_a_link_to_a_folder_above_is_refused(texts: Path) -> None:
    (texts / "loop").symlink_to(texts.parent)
    assert "a link to a folder that it is in" in refusal(texts.parent.parent / "out", texts)


def test_a_broken_link_is_refused(texts: Path) -> None:
    (texts / "20.txt").symlink_to("missing.txt")
    assert "20.txt: a link to missing.txt, which does not exist" in refusal(texts.parent / "out", texts)


def test_hidden_files_and_folders_are_left_out(texts: Path) -> None:
    expected = files(make(texts.parent / "before", texts).path)
    (texts / ".hidden").mkdir()
    (texts / ".hidden" / "a.txt").write_text("hidden words\n")
    (texts / ".a.txt").symlink_to("missing.txt")
    assert files(make(texts.parent / "after", texts).path) == expected


def test_a_corpus_inside_a_folder_is_no_text(texts: Path) -> None:
    make(texts / ".hidden" / "corpus", texts)
    expected = f"{texts / 'corpus'}: is inside {texts}, whose text is to be read; name a folder outside of it"
    assert expected in refusal(texts / "corpus", texts)
    make(texts.parent / "corpus", texts).path.rename(texts / "corpus")
    assert f"{texts / 'corpus'}: a prepared corpus, and not text" in refusal(texts.parent / "out", texts)


def test_a_pipe_is_refused(texts: Path) -> None:
    pipe = texts.parent / "pipe"
    os.mkfifo(pipe)
    for source in (pipe, texts.parent / "p*"):
        assert f"{pipe}: is a pipe or a device, and would be read twice" in refusal(texts.parent / "out", source)


def test_the_end_of_a_pipe_that_a_process_has_open_is_refused(texts: Path) -> None:
    reading, writing = os.pipe()
    try:
        writer = threading.Thread(target=lambda: (os.write(writing, b"some words\n" * 10), os.close(writing)))
        writer.start()
        assert "is a pipe or a device" in refusal(texts.parent / "out", f"/dev/fd/{reading}")
        writer.join()
    finally:
        os.close(reading)


@pytest.mark.parametrize("code", ["deu", "zz", "qqq", "German", "", "de-DE"])
def test_a_language_that_is_no_code_of_two_letters_is_refused(texts: Path, code: str) -> None:
    expected = f"language is {code!r}; expected its ISO 639-1 code of two letters, such as de"
    assert expected in refusal(texts.parent / "out", texts, language=code)


@pytest.mark.parametrize("data", [b"t\0h\0e\0 \0c\0a\0t\0\n\0", b"the cat\nthe \0 dog\n"])
def test_nul_bytes_are_refused_or_replaced(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"the first line\n" * 200 + data)
    line = 200 + 1 + data[: data.index(b"\0")].count(b"\n")
    expected = f"text.txt, line {line}: byte 0x00 is NUL, as in UTF-16 or binary files; convert the file to UTF-8"
    assert expected in refusal(tmp_path / "out", path, format="lines")
    corpus = make(tmp_path / "out", path, format="lines", errors="replace", min_count=1)
    assert not any("\0" in word for word in corpus.words()) and any("\ufffd" in word for word in corpus.words())
    assert corpus.report["text"]["replaced_lines"] == sum(b"\0" in each for each in data.split(b"\n"))


def test_bytes_of_json_lines_that_are_not_utf8_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_bytes(b'{"text": "A good day it is."}\n' * 30 + b'{"text": "A \xff day."}\n')
    expected = "line 31: byte 0xff is not UTF-8; convert the file to UTF-8, or continue with --errors=replace"
    assert expected in refusal(tmp_path / "out", path)
    corpus = make(tmp_path / "out", path, errors="replace", min_count=1, heldout_fraction=0)
    assert "\ufffd" in corpus.words() and corpus.report["text"]["replaced_lines"] == 1


def test_out_may_be_a_link_to_an_empty_folder(texts: Path) -> None:
    position = texts.parent / "place"
    position.mkdir()
    (texts.parent / "link").symlink_to(position)
    corpus = make(texts.parent / "link", texts)
    assert (texts.parent / "link").is_symlink() and files(position) == files(corpus.path)


def test_out_may_not_be_the_current_folder(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    position = texts.parent / "place"
    position.mkdir()
    monkeypatch.chdir(position)
    for out in (Path("."), position):
        assert "cannot be replaced, being the current folder" in refusal(out, texts)


@pytest.mark.parametrize("name", ["a.csv", "b.html", "README.md", "a.txt~", "c.csv.gz", ".hidden.csv"])
def test_files_of_a_folder_that_are_no_prose_are_refused(texts: Path, name: str) -> None:
    content = b"a,b\n1,2\n"
    (texts / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    if name.startswith("."):
        make(texts.parent / "out", texts)
        return
    advice = f"{texts / name}: not plain text; name the files to be read by a quoted glob, as '{texts}/*.txt'"
    assert advice in refusal(texts.parent / "out", texts)
    assert len(read(make(texts.parent / "out", texts / "*.txt"), "train")) == 19
