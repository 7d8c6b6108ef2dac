import bz2
import codecs
import gzip
import io
import lzma
import zipfile

import pytest
from backports import zstd

from elmo_jax.errors import UserError
from elmo_jax.tasks.formats.lines import blocks, cells, read_json
from elmo_jax.text_files import Line, read_lines
from tests.tasks.format_cases import message, write

pytestmark = pytest.mark.quick

TEXT = "one\n\ntwo é\n"
LINES = [Line(1, "one"), Line(2, ""), Line(3, "two é")]


def every_line(path):
    return list(read_lines(path))


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        TEXT.encode().removesuffix(b"\n"),
        b"\xef\xbb\xbf" + TEXT.encode(),
        TEXT.replace("\n", "\r\n").encode(),
    ],
    ids=["plain", "no end of line at the end", "byte order mark", "CRLF"],
)
def test_lines(tmp_path, data):
    assert every_line(write(tmp_path, data)) == LINES


def zipped(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", content)
    return file.getvalue()


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        (".gz", gzip.compress),
        (".xz", lzma.compress),
        (".bz2", bz2.compress),
        (".zst", zstd.compress),
        (".zip", zipped),
    ],
)
def test_compressed(tmp_path, suffix, compress):
    path = write(tmp_path, compress(codecs.BOM_UTF8 + TEXT.encode()), f"file{suffix}")
    assert every_line(path) == LINES
    cut = write(tmp_path, path.read_bytes()[:-3], f"cut{suffix}")
    with pytest.raises(UserError, match=f"cut{suffix}: the {suffix[1:]} file is damaged or cut short"):
        every_line(cut)


def test_only_newlines_end_a_line(tmp_path):
    assert [line.text for line in read_lines(write(tmp_path, "a\u2028b\x85c\x0bd\n"))] == ["a\u2028b\x85c\x0bd"]


def test_lines_that_end_with_a_carriage_return_alone_are_refused(tmp_path):
    """They would be one line, and all sentences one word."""
    for text, line in (("one\rtwo\r", 1), ("one\n\ntwo\r\r\n", 3)):
        actual = message(every_line, write(tmp_path, text))
        assert actual == f"line {line}: has a carriage return inside; convert the ends of lines to line feeds"


def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path):
    path = write(tmp_path, b"one\ncaf\xe9\n")
    assert message(every_line, path) == "line 2: byte 0xe9 is not UTF-8; convert the file to UTF-8"


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="none.txt: cannot be read"):
        every_line(tmp_path / "none.txt")
    with pytest.raises(UserError, match="cannot be read"):
        every_line(tmp_path)


def test_blocks_are_the_lines_between_blank_lines(tmp_path):
    path = write(tmp_path, "\n \na\nb\n\t\nc\n\n\n")
    assert [[line.text for line in block] for block in blocks(path)] == [["a", "b"], ["c"]]
    assert [[line.number for line in block] for block in blocks(path)] == [[3, 4], [6]]


def test_cells():
    assert cells("a\t b c\t\t") == ["a", " b c", "", ""]  # tabs divide exactly
    assert cells("a  b c ") == ["a", "b", "c"]  # any number of spaces does


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ('"\\ud83d\\ude00"', "😀"),  # both halves of a surrogate pair
        ("[1,\n2,]", "file.json, line 8: not JSON (Illegal trailing comma"),
        ("[" * 100_000, "file.json, line 7: not JSON that can be read (maximum recursion depth"),
        ("1" * 5000, "file.json, line 7: not JSON that can be read (Exceeds the limit"),
        ('["\\ud83d"]', "file.json, line 7: has a \\u escape that is half of a surrogate pair"),
    ],
)
def test_json(tmp_path, text, expected):
    if not isinstance(expected, str) or expected == "😀":
        assert read_json(tmp_path / "file.json", text, 7) == expected
        return
    with pytest.raises(UserError) as error:
        read_json(tmp_path / "file.json", text, 7)
    assert expected.split(" (Illegal")[0] in str(error.value) and "\n" not in str(error.value)
