"""The layouts that texts come in: which one a file has, its documents, and what is held out of them."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencex

from elmo_jax.data.corpus import Corpus
from elmo_jax.data.prepare import pieces as pieces_module
from elmo_jax.data.prepare import text as text_module
from elmo_jax.data.prepare.options import PrepareOptions, TextOptions
from elmo_jax.data.prepare.pipeline import describe, prepare
from elmo_jax.data.prepare.sources import open_sources
from elmo_jax.data.prepare.text import Format, is_unspaced, raw_sentences, split_sentences
from elmo_jax.errors import UserError

pytestmark = pytest.mark.quick

LONG = "This sentence, which has a comma, is one of several that make the line long. " * 3  # 231 characters


def read(corpus: Corpus, split: str) -> list[str]:
    """Returns the sentences of a split."""
    words, blocks = corpus.words(), corpus.blocks(split)
    text = " ".join("\n" if i == 0 else words[i] for k in range(len(blocks)) for i in blocks[k])
    return [line.strip() for line in text.split("\n")[1:]]


def make(out: Path, *sources: Path | str, **settings: Any) -> Corpus:
    options = TextOptions(**{name: settings.pop(name) for name in ("format", "field", "errors") if name in settings})
    return prepare([str(s) for s in sources], out, PrepareOptions(options, progress=False, workers=1, **settings))


def refusal(out: Path, *sources: Path | str, **settings: Any) -> str:
    with pytest.raises(UserError) as error:
        make(out, *sources, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def paragraph(document: int, number: int) -> str:
    return f"Document {document} has a paragraph {number}."


def sentence(document: int, number: int) -> str:
    return f"Document {document} has a paragraph {number} ."


def documents(folder: Path, format: str) -> Path:
    """Writes the same twenty documents in one of the formats; document i has i % 3 + 1 paragraphs."""
    texts = [[paragraph(i, k) for k in range(i % 3 + 1)] for i in range(20)]
    path = folder / f"text.{format if format in ('jsonl', 'parquet') else 'txt'}"
    match format:
        case "documents":
            path.write_text("\n\n".join("\n".join(text) for text in texts) + "\n")
        case "document-lines":
            path.write_text("\n".join(" ".join(text) for text in texts))
        case "jsonl":
            path.write_text("".join(json.dumps({"id": 1, "text": "\n\n".join(text)}) + "\n" for text in texts))
        case "parquet":
            import pyarrow
            from pyarrow import parquet

            column = pyarrow.array(["\n\n".join(text) for text in texts])
            parquet.write_table(pyarrow.table({"id": pyarrow.array(range(20)), "text": column}), path)
    return path


@pytest.mark.parametrize("format", ["documents", "document-lines", "jsonl", "parquet"])
def test_documents_of_every_layout_are_held_out_whole(tmp_path: Path, format: str) -> None:
    asked = {} if format in ("jsonl", "parquet") else {"format": format}
    corpus = make(tmp_path / "out", documents(tmp_path, format), heldout_fraction=0.2, **asked)
    held = (4, 9, 14, 19)
    assert read(corpus, "heldout") == [sentence(i, k) for i in held for k in range(i % 3 + 1)]
    assert read(corpus, "train") == [sentence(i, k) for i in range(20) if i not in held for k in range(i % 3 + 1)]
    assert [corpus.report["splits"][split]["documents"] for split in ("train", "heldout")] == [16, 4]


def test_documents_do_not_depend_on_the_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = documents(tmp_path, "documents")
    text.write_text(text.read_text().replace("\n\n", "\n  \n\n") + "\n\nThe last one is longer.\n" * 30)
    source = open_sources([str(text)], TextOptions("documents"))[0]

    def found() -> list[str]:
        whole: list[str] = []
        for piece in source.pieces():
            assert text.read_bytes().split(b"\n")[piece.first_line - 1 :][0] == piece.data.split(b"\n")[0]
            whole += [""] * piece.starts_document
            whole[-1] += piece.data.decode()
        return whole

    whole = found()
    assert len([document for document in whole if document.strip()]) == 50
    for size in (10, 50, 64, 200):
        monkeypatch.setattr(pieces_module, "CHUNK_BYTES", size)
        assert found() == whole


def test_layout_is_recognized_and_said(tmp_path: Path) -> None:
    layouts = {
        "documents": f"Title\n{LONG}\n{LONG}\n\nTitle\n{LONG}\n",
        "no_blank_lines": f"{LONG}\nShort, this one.\n{LONG}\n",
        "paragraphs": f"{LONG}\n\n{LONG}\n\n{LONG}\n",
        "wrapped": "A paragraph, wrapped to lines\nof a width, one by one.\n\nAnother one, with\nlines.\n",
        "captions": "A man, seen from behind.\nTwo dogs run!\n\n" * 20,
        "few_captions": "A man, seen from behind.\nTwo dogs run!\n\n" * 19,
        "no_commas": f"{LONG}\n{LONG}\n\n{LONG}\n".replace(",", ""),
        "tokenized": "A sentence , tokenized .\nAnother one , too .\n",
        "tokenized_no_commas": "A sentence tokenized .\nAnother by Mr. Low .\n",
        "half_of_the_commas": "A sentence , tokenized, too .\n",
        "no_marks": "a line\nanother\n",
        "one_abbreviation": "this is no. seven of the lines\n" + "the others have no marks at all\n" * 40,
    }
    for name, text in layouts.items():
        (tmp_path / name).write_text(text)
    actual = open_sources([str(tmp_path / name) for name in layouts], TextOptions())
    running = [*[Format.DOCUMENTS] * 2, *[Format.RAW] * 2, Format.DOCUMENTS, Format.RAW, Format.DOCUMENTS]
    expected = [*running, *[Format.LINES] * 5]
    assert [source.format for source in actual] == expected
    assert "one paragraph per line, with a blank line after each document" in actual[0].reason
    assert all(source.reason for source in actual)
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write('{"text": "A text."}\n')
    (packed,) = open_sources([str(tmp_path / "a.jsonl.gz")], TextOptions())
    assert packed.format is Format.JSONL and packed.reason == "its name ends in .jsonl"


def test_a_file_that_is_one_document_is_held_out_in_runs(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"{LONG.strip()} And a last one.\n" * 250)
    corpus = make(tmp_path / "out", tmp_path / "a.txt", heldout_fraction=0.5)
    assert [corpus.report["splits"][split]["sentences"] for split in ("train", "heldout")] == [500, 500]
    assert corpus.report["splits"]["heldout"]["documents"] is None


def test_each_source_has_its_share_held_out(tmp_path: Path) -> None:
    text = documents(tmp_path, "documents")
    (tmp_path / "lines.txt").write_text("".join(f"line {i} , tokenized .\n" for i in range(950)))
    for name in "abcdefgh":
        (tmp_path / f"{name}.txt").write_text(f"The file {name}, a document.\n\nIts end.\n")
    files = [tmp_path / f"{name}.txt" for name in "abcdefgh"]
    text.write_text(text.read_text().replace("paragraph", "paragraph, which is not short, " + "x" * 200))
    corpus = make(tmp_path / "out", text, *files[:4], tmp_path / "lines.txt", *files[4:], heldout_fraction=0.25)
    held = [source["splits"]["heldout"] for source in corpus.report["sources"]]
    assert held[0] == {"documents": 5, "sentences": 9, "words": 9 * 14}
    assert held[5] == {"documents": None, "sentences": 200, "words": 1000}
    # Files that are one document each are counted together, as in a folder.
    assert [item["documents"] for item in held[1:5] + held[6:]] == [0, 0, 0, 1, 0, 0, 0, 1]
    assert corpus.report["splits"]["heldout"]["sentences"] == sum(item["sentences"] for item in held)
    assert corpus.report["splits"]["heldout"]["words"] == sum(item["words"] for item in held)
    assert "  lines.txt " in describe(corpus)
    assert np.diff([len(line) for line in describe(corpus).split("\n") if line.startswith("  ")]).any() == 0


def test_held_out_files_are_not_trained_on(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for i in range(10):
        (tmp_path / "text" / f"{i}.txt").write_text(f"file {i} , tokenized .\n")
    held = str(tmp_path / "text" / "3.txt")
    corpus = make(tmp_path / "out", tmp_path / "text", heldout_sources=[held])
    assert read(corpus, "heldout") == ["file 3 , tokenized ."]
    assert read(corpus, "train") == [f"file {i} , tokenized ." for i in range(10) if i != 3]
    corpus = make(tmp_path / "both", tmp_path / "text", heldout_sources=[held], heldout_fraction=0.2)
    assert read(corpus, "heldout") == [f"file {i} , tokenized ." for i in (5, 3)]  # every fifth of the remaining ones
    assert "all of it is held out" in refusal(tmp_path / "none", held, heldout_sources=[str(tmp_path / "text")])


def test_long_lines_are_paragraphs() -> None:
    spoken = [f'"{LONG}', "Yes.", LONG, "", "A heading", "over two lines"]
    assert len(list(raw_sentences(spoken))) == 3 + 1 + 3 + 1
    assert len(list(raw_sentences(["One.", "Two and", "three."], paragraph_lines=True))) == 3


def test_a_long_speech_is_split_into_sentences() -> None:
    first, second = "I have a long speech to make, he said to all of them.", "It was long indeed (and dull)!"
    speech = " ".join([first, second] * 6)
    assert split_sentences(f'He rose. "{first} {second}" "Sit down."') == [
        "He rose.",
        f'"{first} {second}"',
        '"Sit down."',
    ]
    actual = split_sentences(f'He rose. "{speech}" "Sit down. Now," they said. And he did.')
    assert actual[:3] == ["He rose.", f'"{first}', second]
    assert actual[-3:] == [f'{second}"', '"Sit down. Now," they said.', "And he did."]


def work_of(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Returns the characters that the splitter of sentences and the tokenizer are given, weighted by their time.

    sentencex takes time in proportion to the square of the length of its text where quotes are not closed.
    """
    real, squares, characters = sentencex.segment, [], []

    def segment(language: str, text: str) -> list[str]:
        squares.append(len(text) ** 2)
        return real(language, text)

    class Tokenizer:
        def tokenize(self, text: str, escape: bool) -> list[str]:
            characters.append(len(text))
            return text.split()

    monkeypatch.setattr(sentencex, "segment", segment)
    monkeypatch.setattr(text_module, "_moses", lambda language: Tokenizer())
    for _ in raw_sentences(lines):
        pass
    monkeypatch.undo()
    return sum(squares), sum(characters)


@pytest.mark.parametrize(
    "line",
    [
        "“He said so. She went. ",  # By itself, sentencex searches the whole paragraph for the end of each quote.
        LONG,
        '"No," he said. "Never!\n',
        "no stop and no comma",
        "1. ",
        '" ',
        "x" * 1000,
    ],
)
@pytest.mark.parametrize("layout", ["lines", "one_line"])
def test_the_work_grows_linearly_with_the_text(line: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(number: int) -> tuple[int, int]:
        return work_of([line] * number if layout == "lines" else [line * number], monkeypatch)

    number = 100_000 // len(line)
    for once, twice in zip(work(number), work(2 * number), strict=True):
        assert twice <= 2.3 * once + 1000


def test_unclosed_quotes_are_split() -> None:
    actual = split_sentences("“He said so. She went. " * 4_000)
    assert len(actual) == 8_000 and max(map(len, actual)) < 20


def test_one_paragraph_per_line_without_blank_lines(tmp_path: Path) -> None:
    """Neither a heading nor a paragraph without a full stop runs into the next one."""
    (tmp_path / "a.txt").write_text(f"A heading\n{LONG.strip().rstrip('.')}\n" * 100)
    for format in ("raw", "auto"):
        corpus = make(tmp_path / format, tmp_path / "a.txt", format=format, heldout_fraction=0)
        assert corpus.report["text"]["longest_sentence"] < 25 and corpus.report["text"]["long_sentences"] == 0
        assert corpus.report["splits"]["train"]["sentences"] == 4 * 100


def test_sentences_of_over_300_words_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A short sentence, of words.\n\n" + "a table has no stops\n" * 100)
    corpus = make(tmp_path / "out", tmp_path / "a.txt", format="raw", heldout_fraction=0)
    text = corpus.report["text"]
    assert (text["long_sentences"], text["long_sentence_words"], text["longest_sentence"]) == (1, 500, 500)
    assert "over 300 words" in describe(corpus)
    assert "1 sentences, 500 words (98.62% of all); the longest has 500" in describe(corpus)


def test_damaged_records_are_one_line(tmp_path: Path) -> None:
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    cases = {
        '{"text": "fine"}\n{"text": \n': "a.jsonl, line 2: not JSON",
        '{"text": "fine"}\n\n["text"]\n': "a.jsonl, line 3: expected a JSON object with a text in 'text', got a list",
        '{"body": "x", "id": 1}\n': "no 'text'; name the text's field with --field; there are: body, id",
        '{"text": null}\n': "'text' is null; expected a text",
        '{"text": "caf\\ud800"}\n': "byte 0xed is not UTF-8",
        "[" * 100_000 + "\n": "a.jsonl, line 1: not JSON",
    }
    for text, complaint in cases.items():
        path.write_text(text)
        assert complaint in refusal(out, path)
    path.write_text('{"body": "A text here."}\n' * 300)
    assert read(make(out, path, field="body", heldout_fraction=0), "train") == ["A text here ."] * 300
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no more")
    assert "a.parquet: the Parquet file is damaged" in refusal(tmp_path / "p", tmp_path / "a.parquet")
    whole = documents(tmp_path, "parquet")
    complaint = refusal(tmp_path / "p", whole, field="body")
    assert "no column 'body'; name the text's column with --field; there are: id, text" in complaint
    assert "the column 'id' holds int64; expected strings" in refusal(tmp_path / "p", whole, field="id")
    whole.write_bytes(whole.read_bytes()[:-20])
    assert "the Parquet file is damaged" in refusal(tmp_path / "p", whole)
    assert "holds records (.jsonl, .json, .parquet) and other files" in refusal(tmp_path / "p", f"{tmp_path}/*.*")


def test_json_is_recognized_by_its_contents(tmp_path: Path) -> None:
    path = tmp_path / "text.json"
    lines = [json.dumps({"body": paragraph(i, 0)}) for i in range(20)]
    path.write_text("\n".join(lines))
    assert open_sources([str(path)], TextOptions(field="body"))[0].format is Format.JSONL
    assert len(read(make(tmp_path / "lines", path, field="body"), "train")) == 19
    path.rename(tmp_path / "text.txt")
    assert open_sources([str(tmp_path / "text.txt")], TextOptions())[0].format is Format.JSONL
    path.write_text(json.dumps([{"body": paragraph(i, 0)} for i in range(20)], indent=1))
    assert "text.json: its first line is not a whole JSON object; write one" in refusal(tmp_path / "out", path)
    assert open_sources([str(path)], TextOptions("raw"))[0].format is Format.RAW


def test_a_first_record_that_is_long_is_recognized(tmp_path: Path) -> None:
    path = tmp_path / "text.json"
    path.write_text("".join(json.dumps({"text": LONG * 500}) + "\n" for _ in range(2)))
    assert open_sources([str(path)], TextOptions())[0].format is Format.JSONL
    (tmp_path / "other.txt").write_text(LONG)
    with pytest.raises(UserError, match="holds records .* and other files; name each kind by its own glob"):
        open_sources([str(tmp_path)], TextOptions())


def test_a_field_of_text_without_fields_is_refused(tmp_path: Path) -> None:
    path = documents(tmp_path, "documents")
    expected = f"--field body: {path} is read as"
    assert expected in refusal(tmp_path / "out", path, field="body")
    (tmp_path / "more.jsonl").write_text(json.dumps({"body": LONG}) + "\n")
    make(tmp_path / "out", path, tmp_path / "more.jsonl", field="body")


def test_suffixes_in_capitals(tmp_path: Path) -> None:
    expected = read(make(tmp_path / "small", documents(tmp_path, "jsonl")), "train")
    path = tmp_path / "TEXT.JSONL.GZ"
    path.write_bytes(gzip.compress((tmp_path / "text.jsonl").read_bytes()))
    assert read(make(tmp_path / "capitals", path), "train") == expected


def test_a_minimal_count_that_no_word_has_is_refused(tmp_path: Path) -> None:
    path = documents(tmp_path, "documents")
    expected = "the minimum count is 1000, and no word occurs that often; choose a smaller one"
    assert expected in refusal(tmp_path / "out", path, min_count=1000)
    assert not (tmp_path / "out").exists()


def test_letters_between_spaces_are_words_up_to_six() -> None:
    for letters, are_clauses in ((6, False), (7, True)):
        assert is_unspaced("あ" * letters + " " + "い" * letters, are_words=True) == are_clauses
