"""Word vectors from several files, side by side."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.errors import UserError
from elmo_jax.tasks.core.config import CharactersConfig, WordVectorsConfig
from elmo_jax.tasks.core.vocabulary import build, read_vectors

pytestmark = pytest.mark.quick


@pytest.fixture
def files(tmp_path):
    (tmp_path / "wide.txt").write_text("cat 3 4 0\nDog 0 0 2\nunused 9 9 9\n")
    (tmp_path / "narrow.txt").write_text("cat 0 5\ncow 1 0\n")
    return tmp_path


def table(path, **settings):
    config = WordVectorsConfig(path=path, lowercase="never", **settings)
    words, actual = build([["cat", "Dog", "emu"]], [["cow"]], config, CharactersConfig())
    vectors = actual.first_vectors(0)
    return {word: vectors[words.word_id(word)] for word in ("cat", "Dog", "cow", "emu")}


def test_the_vectors_of_a_word_are_joined_and_what_a_file_lacks_is_zero(files):
    actual = table(f"{files / 'wide.txt'}, {files / 'narrow.txt'}", unknown="zero")
    expected = {"cat": [3, 4, 0, 0, 5], "Dog": [0, 0, 2, 0, 0], "cow": [0, 0, 0, 1, 0], "emu": [0] * 5}
    for word, vector in expected.items():
        assert_allclose(actual[word], vector)


def test_every_part_is_normalized_by_itself(files):
    actual = table(f"{files / 'wide.txt'},{files / 'narrow.txt'}", unknown="zero", normalize=True)
    assert_allclose(actual["cat"], [0.6, 0.8, 0, 0, 1])
    assert_allclose(actual["Dog"], [0, 0, 1, 0, 0])


def test_unknown_words_of_the_training_text_are_drawn(files):
    actual = table(str(files / "wide.txt"))
    assert_allclose(actual["cat"], [3, 4, 0])
    assert actual["emu"].shape == (3,) and np.abs(actual["emu"]).min() > 0


def test_a_file_without_any_word_is_named(files):
    (files / "other.txt").write_text("KATZE 1 2\n")
    with pytest.raises(UserError, match="other.txt: has none of the training text's words"):
        table(f"{files / 'wide.txt'},{files / 'other.txt'}")


def test_a_byte_order_mark_and_tabs_are_no_part_of_a_word(files):
    plain = table(str(files / "wide.txt"))
    text = (files / "wide.txt").read_text()
    for name, content in (
        ("marked", "\ufeff" + text),
        ("header", "\ufeff3 3\n" + text),
        ("empty_lines", f"\n{text}\n\n"),
        ("tabs", text.replace(" ", "\t")),
    ):
        (files / name).write_text(content, encoding="utf-8")
        actual = table(str(files / name))
        assert all((actual[word] == plain[word]).all() for word in ("cat", "Dog", "emu")), name


def test_the_fingerprint_is_of_the_vectors_and_not_of_their_file(files):
    def fingerprint(path, **settings):
        config = WordVectorsConfig(path=str(path), lowercase="never", **settings)
        return build([["cat", "Dog", "emu"]], [["cow"]], config, CharactersConfig())[1].fingerprint

    first = fingerprint(files / "wide.txt")
    (files / "copy.txt").write_text((files / "wide.txt").read_text() + "more 1 2 3\n")
    assert fingerprint(files / "copy.txt") == first
    assert fingerprint(files / "wide.txt", unknown="zero") != first
    (files / "copy.txt").write_text((files / "wide.txt").read_text().replace("3 4 0", "3 4 1"))
    assert fingerprint(files / "copy.txt") != first


def test_the_parts_before_the_numbers_are_the_word(tmp_path):
    """Some words of GloVe contain spaces; a line with a number too many is that of another word."""
    (tmp_path / "vectors.txt").write_text("cat 1 2\n. . . 3 4\ndog 0 1 5\n")
    actual = read_vectors(str(tmp_path / "vectors.txt"), {"cat", ". . .", "dog", "dog 0"})
    assert {word: vector.tolist() for word, vector in actual.items()} == {
        "cat": [1, 2],
        ". . .": [3, 4],
        "dog 0": [1, 5],
    }
    assert list(read_vectors(str(tmp_path / "vectors.txt"))) == ["cat", ". . .", "dog 0"]


def test_the_binary_files_of_word2vec_are_refused(tmp_path):
    (tmp_path / "v.bin").write_bytes(b"1 1\ncat 1234\n")
    with pytest.raises(UserError, match="v.bin: expected vectors as text; gensim's save_word2vec_format"):
        read_vectors(str(tmp_path / "v.bin"), {"cat"})
