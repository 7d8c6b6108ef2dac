from pathlib import Path

import pytest

from elmo_jax.data.lexicon import order_of, read_vocabulary, write_lexicon
from elmo_jax.errors import UserError

pytestmark = pytest.mark.quick

SPECIAL_WORDS = ["<S>", "</S>", "<UNK>"]
COUNTS = {
    "b": 3,
    "zebra": 7,
    "a": 3,
    "<UNK>": 1,
    "é": 3,
    "heldout": 0,
    "</S>": 9,
    "Z": 3,
    "𝄞": 1,
    "\ufffd": 1,
    "<S>": 9,
}


def lexicon(folder: Path, given: list[str], size: int | None, count: int | None) -> tuple[list[str], list[str]]:
    """Writes the words of `COUNTS`, and returns the lines of the lexicon and of the vocabulary."""
    entries = sorted((dict.fromkeys(given, 0) | COUNTS).items(), key=order_of(given))
    report = write_lexicon(folder, entries, len(given), size, count)
    lines, words = ((folder / name).read_bytes().decode().split("\n") for name in ("lexicon.tsv", "vocabulary.txt"))
    assert lines.pop() == words.pop() == ""
    assert report == {"types": len(lines), "vocabulary_size": len(words), "long_words": 0}
    assert [line.split("\t")[0] for line in lines][: len(words)] == words
    return lines, words


def test_falling_count_then_bytes(tmp_path: Path) -> None:
    lines, words = lexicon(tmp_path, SPECIAL_WORDS, None, 2)
    # U+FFFD sorts before U+1D11E in UTF-8; in UTF-16 it would not.
    expected = ["<S> 9", "</S> 9", "<UNK> 1", "zebra 7", "Z 3", "a 3", "b 3", "é 3", "\ufffd 1", "𝄞 1", "heldout 0"]
    assert [line.replace("\t", " ") for line in lines] == expected
    assert words == read_vocabulary(tmp_path / "vocabulary.txt") == [*SPECIAL_WORDS, "zebra", "Z", "a", "b", "é"]


@pytest.mark.parametrize(
    ("size", "count", "expected"), [(None, 1, 10), (None, 4, 4), (5, 1, 5), (100, 1, 10), (100, 3, 8), (6, 3, 6)]
)
def test_vocabulary_is_the_smaller_of_size_and_count(
    tmp_path: Path, size: int | None, count: int, expected: int
) -> None:
    assert len(lexicon(tmp_path, SPECIAL_WORDS, size, count)[1]) == expected


def test_heldout_words_are_never_in_the_vocabulary(tmp_path: Path) -> None:
    lines, words = lexicon(tmp_path, SPECIAL_WORDS, 1000, 1)
    assert lines[len(words) :] == ["heldout\t0"]


def test_given_vocabulary_keeps_its_order(tmp_path: Path) -> None:
    lines, words = lexicon(tmp_path, [*SPECIAL_WORDS, "a", "unseen", "zebra"], None, None)
    assert words == [*SPECIAL_WORDS, "a", "unseen", "zebra"]
    expected = ["<S> 9", "</S> 9", "<UNK> 1", "a 3", "unseen 0", "zebra 7", "Z 3", "b 3", "é 3", "\ufffd 1", "𝄞 1"]
    assert [line.replace("\t", " ") for line in lines] == [*expected, "heldout 0"]


def test_long_words_are_counted(tmp_path: Path) -> None:
    report = write_lexicon(tmp_path, [("é" * 24, 2), ("é" * 24 + "a", 1)], 0, None, 2)
    assert report == {"types": 2, "vocabulary_size": 1, "long_words": 1}


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
    [(None, 2, ["zebra", "Z", "é"]), (None, 4, ["zebra"]), (7, 1, ["zebra", "Z"]), (5, 1, []), (None, 8, [])],
)
def test_words_are_added_behind_a_base(tmp_path: Path, size: int | None, count: int, added: list[str]) -> None:
    """Those of the base stay where they are, seen or not; the others follow by count."""
    base = [*SPECIAL_WORDS, "b", "a"]
    lines, words = lexicon(tmp_path, base, size, count)
    assert words == [*base, *added]
    assert {line.split("\t")[0]: int(line.split("\t")[1]) for line in lines} == COUNTS
