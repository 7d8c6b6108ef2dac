"""Tests vectors of word lists, as files and as a cache."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from elmo_jax import CachedWords, EmbeddingBiLM, UserError, load_bilm
from elmo_jax.cli.main import main
from elmo_jax.embedding.embed_file import embed_file
from elmo_jax.embedding.words_file import embed_words
from tests.embedding.published import OPTIONS, WEIGHTS, read
from tests.end_to_end.commands import Commands, stopped_when, wait


@pytest.fixture(scope="module")
def bilm() -> EmbeddingBiLM:
    return load_bilm((OPTIONS, WEIGHTS))


def test_words_in_the_published_format(bilm, tmp_path, capsys):
    words = ["the", "…", "<S>", "</S>", "<UNK>", "w" * 60]
    vocabulary, out = tmp_path / "vocab.txt", tmp_path / "words.hdf5"
    vocabulary.write_text("\n".join(words))  # without a last line break, as the released one
    command = ["embed", "--words", str(WEIGHTS), str(vocabulary), str(out), "--options", str(OPTIONS)]
    assert main(command) == 0
    with h5py.File(out) as file:
        assert list(file) == ["embedding"] and file["embedding"].dtype == np.float32
        assert_allclose(file["embedding"][...], bilm.words(words), atol=1e-5)
    cache = CachedWords.read(vocabulary, out)
    assert_allclose(cache.vectors, bilm.words(words), atol=1e-5)
    characters, positions = cache([["the", "cat", "…"], ["cat"]])
    assert_array_equal(positions, [[1, -1, 2], [-1, 0, 0]])
    assert len(characters) == 1
    assert main(command) == 2 and "exists" in capsys.readouterr().err
    vocabulary.write_text("one\n")
    with pytest.raises(UserError, match="6 vectors for the 1 words"):
        CachedWords.read(vocabulary, out)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("the\t5\nbank\t2\n", r"line 1: 'the\\t5' has spaces or tabs; expected one word per line"),
        ("the\nNew York\n", "line 2: 'New York' has spaces or tabs"),
        ("the\n \n", "line 2: has no word"),
        ("", "vocab.txt: the file is empty; expected one word per line"),
    ],
)
def test_a_line_that_is_not_one_word_is_refused(bilm, tmp_path, content, message):
    (tmp_path / "vocab.txt").write_text(content)
    with pytest.raises(UserError, match=message):
        embed_words(bilm, tmp_path / "vocab.txt", tmp_path / "words.hdf5")
    assert not (tmp_path / "words.hdf5").exists()


@pytest.mark.parametrize("command", [embed_words, embed_file])
def test_a_pipe_is_refused(bilm, tmp_path, command):
    reading, writing = os.pipe()
    os.write(writing, b"the\ncat\n")
    os.close(writing)
    try:
        with pytest.raises(UserError, match="is a pipe or a device, and would be read twice"):
            command(bilm, Path(f"/dev/fd/{reading}"), tmp_path / "out.hdf5")
    finally:
        os.close(reading)
    assert list(tmp_path.iterdir()) == []


BOM = b"\xef\xbb\xbf"


@pytest.fixture
def word_list(bilm, tmp_path):
    """A word list with a byte-order mark and the line ends of Windows, and its vectors."""
    vocabulary, out = tmp_path / "vocab.txt", tmp_path / "words.hdf5"
    vocabulary.write_bytes(BOM + b"the\r\ncat\r\n")
    assert embed_words(bilm, vocabulary, out) == 2
    return vocabulary, out


def test_a_word_list_of_windows_hits_the_cache(bilm, word_list):
    cache = CachedWords.read(*word_list)
    assert_allclose(cache.vectors, bilm.words(["the", "cat"]), atol=1e-5)
    assert_array_equal(cache([["cat", "the", "dog"]])[1], [[2, 1, -1]])
    assert cache.fingerprint == bilm.vectors_fingerprint


def test_a_byte_order_mark_is_not_text(bilm, tmp_path):
    for name, content in (("with", BOM + b"the cat\nsat\n"), ("without", b"the cat\nsat\n")):
        (tmp_path / name).write_bytes(content)
        embed_file(bilm, tmp_path / name, tmp_path / f"{name}.hdf5")
    for one, two in zip(read(tmp_path / "with.hdf5"), read(tmp_path / "without.hdf5"), strict=True):
        assert_array_equal(one, two)


def test_vectors_of_other_words_are_refused(word_list):
    vocabulary, out = word_list
    vocabulary.write_text("cat\nthe\n")
    with pytest.raises(UserError, match="words.hdf5: the vectors are not of the words of .*vocab.txt in this order"):
        CachedWords.read(vocabulary, out)


def test_vectors_of_another_program_are_read_with_a_warning(word_list, caplog):
    with h5py.File(word_list[1], "r+") as file:
        del file.attrs["elmo_jax"]
    assert CachedWords.read(*word_list).fingerprint == "" and "does not say which biLM it is of" in caplog.text
    with h5py.File(word_list[1], "r+") as file:
        file.attrs["elmo_jax"] = "no"
    with pytest.raises(UserError, match="attribute 'elmo_jax' is damaged"):
        CachedWords.read(*word_list)


def test_a_killed_command_leaves_nothing_in_the_way(tmp_path):
    vocabulary, out, whole = (tmp_path / name for name in ("vocab.txt", "words.hdf5", "whole.hdf5"))
    vocabulary.write_text("".join(f"word{i}\n" for i in range(20_000)))
    arguments = ["embed", "--words", str(WEIGHTS), str(vocabulary), "--options", str(OPTIONS)]
    commands = Commands(tmp_path)
    process = commands.start(*arguments, out)
    assert stopped_when(process, lambda: any(path.stat().st_size for path in tmp_path.glob(".words.*")), signal.SIGKILL)
    wait(process)
    assert not out.exists()
    for path in (out, whole):
        assert commands.run(*arguments, path).status == 0
    assert out.read_bytes() == whole.read_bytes()


def link(file: h5py.File, target: object) -> None:
    file["embedding"] = target


def elsewhere(file: h5py.File, **storage: object) -> None:
    file.create_dataset("embedding", shape=(2, 32), dtype="f4", **storage)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: link(file, h5py.ExternalLink("other.hdf5", "/x")), "is a link to somewhere else"),
        (lambda file: link(file, h5py.SoftLink("/x")), "is a link to somewhere else"),
        (lambda file: elsewhere(file, external=[("other.bin", 0, 256)]), "is compressed or stored elsewhere"),
        (lambda file: elsewhere(file, compression="gzip", fillvalue=1.0), "is compressed or stored elsewhere"),
        (lambda file: elsewhere(file, chunks=(1, 32)), "has no data behind part of its shape"),
        (lambda file: file.create_dataset("embedding", (2, 1 << 38), "f4", chunks=(1, 1024)), "has no data behind"),
        (lambda file: file.create_group("embedding"), "is missing, or is not"),
        (lambda file: None, "is missing, or is not"),
    ],
)
def test_a_cache_that_is_ill_meant(word_list, change, message):
    vocabulary, out = word_list
    with h5py.File(out, "r+") as file:
        del file["embedding"]
        change(file)
    with pytest.raises(UserError, match=f"dataset 'embedding' {message}") as caught:
        CachedWords.read(vocabulary, out)
    assert "\n" not in str(caught.value)
    for content in (b"no", out.read_bytes()[:100]):
        out.write_bytes(content)
        with pytest.raises(UserError, match="words.hdf5: not a whole HDF5 file .*; expected a cache of token vectors"):
            CachedWords.read(vocabulary, out)
