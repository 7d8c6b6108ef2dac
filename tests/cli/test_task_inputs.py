"""The text given to `elmo-jax task predict` becomes the words of examples: with --format lines, one per line."""

import argparse
import io
import json
import sys

import pytest

from elmo_jax.cli import task
from elmo_jax.cli.main import main
from elmo_jax.cli.task import _inputs
from elmo_jax.errors import UserError

pytestmark = pytest.mark.quick


def read(tmp_path, content=None, text=None, format="lines", texts=1, documents=False):
    path = tmp_path / "input.txt"
    if content is not None:
        path.write_bytes(content.encode())
    options = argparse.Namespace(text=text, input=None if content is None else str(path), format=format)
    return list(_inputs(options, texts, documents))


def test_a_line_is_a_sentence_and_words_are_divided_by_spaces_and_tabs_only(tmp_path):
    content = "\ufeffThe cat\r\n8\u00a0½ x\u2028y\tz\n A  dog \nlast"
    expected = [["The", "cat"], ["8\u00a0½", "x\u2028y", "z"], ["A", "dog"], ["last"]]
    assert read(tmp_path, content) == expected
    assert read(tmp_path, content, documents=True) == [expected]


def test_running_text_is_split(tmp_path):
    assert read(tmp_path, "He sat. She ran!\n\n\nYes.\n", format="raw") == [
        ["He", "sat", "."],
        ["She", "ran", "!"],
        ["Yes", "."],
    ]


def test_a_line_of_two_texts(tmp_path):
    assert read(tmp_path, "A dog .\tIt sat\nNo\u2028end\tYes\n", texts=2) == [
        (["A", "dog", "."], ["It", "sat"]),
        (["No\u2028end"], ["Yes"]),
    ]
    assert read(tmp_path, text=["A dog", "It sat"], texts=2) == [(["A", "dog"], ["It", "sat"])]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"content": "a\n\nb\n"}, "input.txt, line 2: is empty"),
        ({"content": "a\nb\n \n"}, "input.txt, line 3: is empty"),
        ({"content": ""}, "input.txt: has no words"),
        ({"content": "\n \n", "format": "raw"}, "input.txt: has no words"),
        ({"content": "", "documents": True}, "input.txt: has no words"),
        ({"text": [""]}, "--text: has no words"),
        ({"text": [" "], "format": "raw"}, "--text: has no words"),
        ({"text": ["a", ""], "texts": 2}, "--text: has no words"),
        ({"text": ["a"], "texts": 2}, "--text: this task has 2 texts per example, got 1"),
        ({"content": "a\tb\na\t \n", "texts": 2}, "input.txt, line 2: has no words"),
        ({"content": "a b\n", "texts": 2}, "input.txt, line 1: expected 2 texts separated by tabs"),
    ],
)
def test_what_has_no_words_is_named(tmp_path, given, expected):
    with pytest.raises(UserError) as error:
        read(tmp_path, **given)
    assert expected in str(error.value) and "\n" not in str(error.value)


class Stub:
    """A task model that returns its input."""

    texts_per_example, reads_documents = 1, False

    def stream(self, inputs):
        return ({"tokens": words} for words in inputs)

    def written(self, inputs):
        return {"": "".join(f"{word}\tNOUN\n" for words in inputs for word in words)}

    def without_examples(self, inputs):
        return 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
def test_data_are_utf8_whatever_the_locale(monkeypatch, encoding):
    monkeypatch.setattr(task, "_load", lambda options: Stub())
    for kind in ("json", "file"):
        stream = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stream, encoding=encoding))
        assert main(["task", "predict", "run", "--text", "Größe … 大", "--format", "lines", "--output", kind]) == 0
        sys.stdout.flush()
        text = stream.getvalue().decode("utf-8")
        words = json.loads(text)["tokens"] if kind == "json" else [line.split("\t")[0] for line in text.splitlines()]
        assert words == ["Größe", "…", "大"]


@pytest.mark.parametrize("format", ["raw", "lines"])
def test_text_without_spaces_is_refused(tmp_path, format):
    with pytest.raises(UserError, match="is in a script without spaces between words"):
        read(tmp_path, "艾达在一八四三年写了它。\n", format=format)
