"""Tests that spaces and tabs separate words in every command and reader, and nothing else does."""

from pathlib import Path

import numpy as np
import pytest

from elmo_jax import UserError, VectorShards, load_bilm
from elmo_jax.analysis.neighbours import read_text
from elmo_jax.data.lexicon import read_vocabulary
from elmo_jax.data.prepare.options import PrepareOptions, TextOptions
from elmo_jax.data.prepare.pipeline import prepare
from elmo_jax.embedding.embed_file import embed_file
from elmo_jax.embedding.output_settings import Format, Settings
from elmo_jax.embedding.words_file import embed_words
from elmo_jax.tasks.snli.task import read
from elmo_jax.tasks.srl.reader import read_bio
from elmo_jax.words import is_blank, split_words
from tests.embedding.published import OPTIONS, WEIGHTS

pytestmark = pytest.mark.quick

# No-break, thin, ideographic and zero-width spaces, and the separators of lines and records that str.split knows.
WORDS = ["8\u00a0½", "a\u2009b\u3000c", "d\u200be\u2028f", "g\x85h\x0bi\x0cj\x1ck", "\u00a0", "end\u2003"]
LINE = "  " + " \t ".join(WORDS) + "\t"


@pytest.fixture(scope="module")
def bilm():
    return load_bilm((OPTIONS, WEIGHTS))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(f"{LINE}\r\n{LINE}\n".encode())
    return path


def test_words_of_a_line():
    assert split_words(LINE) == WORDS and split_words(" \t") == []
    assert is_blank(" \t ") and not is_blank("\u00a0")


def test_prepare_and_neighbours(tmp_path, text):
    corpus = prepare(
        [str(text)],
        tmp_path / "corpus",
        PrepareOptions(TextOptions("lines"), min_count=1, heldout_fraction=0, workers=1, progress=False),
    )
    assert sorted(corpus.words()[3:]) == sorted(WORDS) == sorted(corpus.vocabulary()[3:])
    assert read_vocabulary(tmp_path / "corpus" / "vocabulary.txt") == corpus.vocabulary()
    assert read_text(str(text), TextOptions("lines")) == [tuple(WORDS)] * 2


def test_embed(bilm, tmp_path, text):
    assert embed_file(bilm, text, tmp_path / "vectors", Settings(format=Format.NPY)) == 2
    layers, _, _ = bilm.embed([WORDS])
    np.testing.assert_allclose(VectorShards(tmp_path / "vectors")[1], layers[0], atol=1e-5)
    words = tmp_path / "words.txt"
    words.write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8", newline="\n")
    assert embed_words(bilm, words, tmp_path / "words.hdf5") == len(WORDS)


def test_readers(tmp_path):
    tags = " ".join(["B-V", *["O"] * (len(WORDS) - 1)])
    frames = tmp_path / "frames.txt"
    frames.write_text(f"0 {LINE} ||| {tags}\n", encoding="utf-8", newline="\n")
    assert read_bio(frames)[0].tokens == WORDS
    for name, line in (("labels.dev", "neutral"), ("s1.dev", LINE), ("s2.dev", LINE)):
        (tmp_path / name).write_text(f"{line}\n", encoding="utf-8", newline="\n")
    (pair,) = read(tmp_path / "labels.dev")
    assert pair.texts == (WORDS, WORDS)


def test_a_carriage_return_inside_a_line_is_refused_where_lines_have_words(bilm, tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"one line\r\ntwo\rthree\n")
    with pytest.raises(UserError, match=r"line 2: has a carriage return inside"):
        embed_file(bilm, path, tmp_path / "vectors.hdf5")
    arguments = ([str(path)], tmp_path / "corpus")
    with pytest.raises(UserError, match=r"line 2: byte 0x0d is a carriage return inside a line; end lines with"):
        prepare(*arguments, PrepareOptions(TextOptions("lines"), workers=1, progress=False))
    corpus = prepare(
        *arguments, PrepareOptions(TextOptions("lines", errors="replace"), min_count=1, workers=1, progress=False)
    )
    assert "two\ufffdthree" in corpus.words() and corpus.report["text"]["replaced_lines"] == 1
