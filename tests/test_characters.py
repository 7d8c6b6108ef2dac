import numpy as np
import pytest

from elmo_jax.characters import encode_chars

pytestmark = pytest.mark.quick


def row(*ids: int, length: int) -> list[int]:
    return [*ids, *[260] * (length - len(ids))]


def test_word_is_its_bytes_between_marks() -> None:
    assert encode_chars(["cat"]).tolist() == [row(258, 99, 97, 116, 259, length=50)]
    assert encode_chars(["é"], 7).tolist() == [row(258, 0xC3, 0xA9, 259, length=7)]


def test_sentence_marks_have_their_own_characters() -> None:
    marks = encode_chars(["<S>", "</S>", "<UNK>", "<s>"], 9)
    assert marks.dtype == np.int16
    assert marks.tolist() == [
        row(258, 256, 259, length=9),
        row(258, 257, 259, length=9),
        row(258, *b"<UNK>", 259, length=9),
        row(258, *b"<s>", 259, length=9),
    ]


@pytest.mark.parametrize("length", [46, 47, 48, 49, 90])
def test_long_word_keeps_its_first_48_bytes(length: int) -> None:
    word = "".join(chr(97 + i % 26) for i in range(length))
    assert encode_chars([word]).tolist() == [row(258, *word.encode()[:48], 259, length=50)]


def test_cut_may_fall_inside_a_character() -> None:
    word = "a" + "é" * 30  # bytes 47 and 48 belong to two characters
    assert encode_chars([word])[0].tolist() == [258, *word.encode()[:48], 259]


def test_many_words_spell_as_each_alone() -> None:
    rng = np.random.default_rng(0)
    words = ["".join(chr(c) for c in rng.integers(33, 0x2FF, rng.integers(1, 30))) for _ in range(70_000)]
    rows = encode_chars(words, 20)
    assert rows.shape == (70_000, 20)
    for i in (*range(50), *range(65_500, 65_600), 69_999):
        cut = words[i].encode()[:18]
        assert rows[i].tolist() == row(258, *cut, 259, length=20)


def test_no_words() -> None:
    assert encode_chars([], 20).shape == (0, 20)


def test_too_short_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        encode_chars(["a"], 2)
