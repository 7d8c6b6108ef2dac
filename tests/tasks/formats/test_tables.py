"""One strict reader of tables: a row is one record, or the file is refused."""

import json

import pytest

from elmo_jax.tasks.formats.lines import read_records
from tests.tasks.format_cases import message, write


def read(path, *more):
    return list(read_records(path, *more))


def test_quotation_marks_are_text_where_tabs_separate(tmp_path, capsys):
    text = 'text\tlabel\n"This is awful .\tneg\nI want my money back ."\tneg\n'
    path = write(tmp_path, text, "a.tsv")
    expected = [
        (2, {"text": '"This is awful .', "label": "neg"}),
        (3, {"text": 'I want my money back ."', "label": "neg"}),
    ]
    assert read(path, "none") == expected and capsys.readouterr().err == ""


def test_quoted_cells_of_tabs_are_undone_if_asked_for_and_named_if_not(tmp_path, capsys):
    path = write(tmp_path, 'text\tlabel\n"So ""good"" ."\tpos\n', "a.tsv")
    assert read(path, "csv") == [(2, {"text": 'So "good" .', "label": "pos"})]
    assert capsys.readouterr().err == ""
    assert read(path, "none")[0][1]["text"] == '"So ""good"" ."'
    assert (
        "rows with doubled quotes, read as they are; config.data.quoting=csv would undo them: 1"
        in capsys.readouterr().err
    )


def test_a_cell_in_quotes_may_have_commas_and_lines_and_any_length(tmp_path):
    long = "x" * 140_000
    content = f'\ufeff text , label\r\n"a, ""b""\r\nc",x\r\n\r\n,\r\n{long},y\r\n'
    path = write(tmp_path, content, "a.csv")
    assert read(path, "none") == [(2, {"text": 'a, "b"\nc', "label": "x"}), (6, {"text": long, "label": "y"})]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.csv", "text,label\nWell, it was good,pos\n", "line 2: expected 2 columns, found 3; a text with commas"),
        ("a.csv", "text,label\n\nalone\n", "line 3: expected 2 columns, found 1"),
        ("a.tsv", "text\tlabel\na\tb\tc\n", "line 2: expected 2 columns, found 3 separated by tabs"),
        ("a.csv", "text,text\na,b\n", "line 1: two columns have the name 'text'; rename one"),
        ("a.csv", "text,label,\na,b,c\n", ""),
        ("a.csv", 'text,label\n"a,b\nc,d\n', "line 2: not a row of quoted cells (unexpected end of data)"),
        ("a.csv", "text,label\ra,b\r", "line 1: has a carriage return inside"),
    ],
)
def test_tables_that_are_wrong(tmp_path, name, text, expected):
    path = write(tmp_path, text, name)
    if expected:
        assert message(read, path, "none").startswith(expected)
    else:  # a column without a name, as an index has it
        assert read(path, "none") == [(2, {"text": "a", "label": "b", "": "c"})]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
@pytest.mark.parametrize("content", ["", "\n \n", "\ufeff"])
def test_an_empty_file_has_no_records(tmp_path, name, content):
    assert read(write(tmp_path, content, name), "none") == []


def test_columns_without_a_header(tmp_path):
    names = ("gold_label", "sentence1")
    assert read(write(tmp_path, "a\tb\n"), "none", names) == [(1, {"gold_label": "a", "sentence1": "b"})]
    assert read(write(tmp_path, "x\tsentence1\na\tb\n"), "none", names) == [(2, {"x": "a", "sentence1": "b"})]
    lines = write(tmp_path, json.dumps({"x": 1}) + "\n\n", "a.ndjson")
    assert read(lines, "none", names) == [(1, {"x": 1})]
