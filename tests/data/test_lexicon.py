from pathlib import Path

import numpy as np
import pytest

from elmo_jax.data.lexicon import build_lexicon, read_vocabulary
from elmo_jax.errors import UserError

pytestmark = pytest.mark.quick

MARKS = ["<S>", "</S>", "<UNK>"]
WORDS = [*MARKS, "b", "zebra", "a", "é", "heldout", "Z", "𝄞", "\ufffd"]
COUNTS = np.array([9, 9, 1, 3, 7, 3, 3, 0, 3, 1, 1])


def test_falling_count_then_bytes() -> None:
    lexicon, ids = build_lexicon(WORDS, COUNTS)
    # U+FFFD sorts before U+1D11E in UTF-8; in UTF-16 it would not.
    assert lexicon.words == [*MARKS, "zebra", "Z", "a", "b", "é", "\ufffd", "𝄞", "heldout"]
    assert lexicon.counts.tolist() == [9, 9, 1, 7, 3, 3, 3, 3, 1, 1, 0]
    assert [lexicon.words[i] for i in ids] == WORDS
    assert ids.dtype == np.int32


@pytest.mark.parametrize(
    ("size", "count", "expected"),
    [(None, None, 8), (None, 1, 10), (None, 4, 4), (5, None, 5), (100, None, 10), (100, 3, 8), (6, 3, 6)],
)
def test_vocabulary_is_the_smaller_of_size_and_count(size: int | None, count: int | None, expected: int) -> None:
    lexicon, _ = build_lexicon(WORDS, COUNTS, None, size, count)
    assert lexicon.vocabulary_size == expected


def test_heldout_words_are_never_in_the_vocabulary() -> None:
    lexicon, _ = build_lexicon(WORDS, COUNTS, None, 1000, 1)
    assert lexicon.words[lexicon.vocabulary_size :] == ["heldout"]


def test_given_vocabulary_keeps_its_order() -> None:
    lexicon, ids = build_lexicon(WORDS, COUNTS, [*MARKS, "a", "unseen", "zebra"])
    assert lexicon.words == [*MARKS, "a", "unseen", "zebra", "Z", "b", "é", "\ufffd", "𝄞", "heldout"]
    assert lexicon.counts.tolist()[:7] == [9, 9, 1, 3, 0, 7, 3]
    assert lexicon.vocabulary_size == 6
    assert [lexicon.words[i] for i in ids] == WORDS


def test_files(tmp_path: Path) -> None:
    lexicon, _ = build_lexicon(WORDS, COUNTS)
    lexicon.write(tmp_path / "lexicon.tsv", tmp_path / "vocabulary.txt")
    lines = (tmp_path / "lexicon.tsv").read_bytes().decode().split("\n")
    assert lines[:4] == ["<S>\t9", "</S>\t9", "<UNK>\t1", "zebra\t7"] and lines[-2:] == ["heldout\t0", ""]
    assert read_vocabulary(tmp_path / "vocabulary.txt") == lexicon.words[:8]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<S>\n</S>\nthe\n", "no <UNK>; a vocabulary has <S>, </S>, <UNK> among its words"),
        ("the\n", "no <S> and no </S> and no <UNK>"),
        ("<S>\n</S>\n<UNK>\nthe\na\nthe\n", "'the' is on line 4 and on line 6"),
        ("<S>\n</S>\n<UNK>\n\na\n", "line 4: '' is not one word"),
        ("<S>\n</S>\n<UNK>\nthe 5\n", "line 4: 'the 5' is not one word"),
        ("", "no <S> and no </S> and no <UNK>"),
    ],
)
def test_bad_vocabulary_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "words.txt"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        read_vocabulary(path)
    assert message in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


def test_marks_on_any_lines_come_first_and_the_words_keep_their_order(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("the\n</S>\nof\n!!!MAXTERMID\n<UNK>\na\n<S>\n")  # bilm-tf skips the line of exclamation marks
    assert read_vocabulary(path) == ["<S>", "</S>", "<UNK>", "the", "of", "a"]


def test_a_vocabulary_of_windows(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.txt"
    path.write_bytes(b"\xef\xbb\xbf<S>\r\n</S>\r\n<UNK>\r\nthe\r\n")
    assert read_vocabulary(path) == ["<S>", "</S>", "<UNK>", "the"]


def test_vocabulary_that_is_not_utf8_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    with pytest.raises(UserError, match="cannot be read"):
        read_vocabulary(path)
    path.write_bytes(b"<S>\n</S>\n<UNK>\ncaf\xe9\n")
    with pytest.raises(UserError, match="line 4: byte 0xe9 is not UTF-8"):
        read_vocabulary(path)


@pytest.mark.parametrize(
    ("size", "count", "added"),
    [(None, None, ["zebra", "Z", "é"]), (None, 4, ["zebra"]), (7, 1, ["zebra", "Z"]), (5, 1, []), (None, 8, [])],
)
def test_words_are_added_behind_a_base(size: int | None, count: int | None, added: list[str]) -> None:
    """Those of the base stay where they are, seen or not; the others follow by count."""
    base = [*MARKS, "b", "a"]
    lexicon, ids = build_lexicon(WORDS, COUNTS, None, size, count, base)
    assert lexicon.words[: lexicon.vocabulary_size] == [*base, *added]
    assert sorted(lexicon.words) == sorted(WORDS)
    assert [lexicon.words[i] for i in ids] == WORDS
    assert [lexicon.counts[i] for i in ids] == COUNTS.tolist()
