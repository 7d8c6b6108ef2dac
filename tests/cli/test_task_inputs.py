"""The text given to `elmo-jax task predict` becomes the words of examples: with --format lines, one per line."""

import argparse
import gzip
import io
import json
import os
import sys

import pytest

from elmo_jax.cli import task
from elmo_jax.cli.main import main
from elmo_jax.cli.task import _inputs
from elmo_jax.errors import UserError
from elmo_jax.tasks.core.tagging import TaggedSentence
from elmo_jax.tasks.core.trained_task import TrainedTask
from elmo_jax.tasks.registry import get_task, task_config
from elmo_jax.tasks.squad.reader import tokenize

pytestmark = pytest.mark.quick


def read(tmp_path, content=None, text=None, format="lines", texts=1, documents=False, task="pos", name="input.txt"):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content.encode())
    options = argparse.Namespace(text=text, input=None if content is None else str(path), format=format)
    return list(_inputs(options, Untrained("coref" if documents else "snli" if texts == 2 else task)))


class Untrained(TrainedTask):
    """The part of a trained task that reads its input."""

    def __init__(self, name, **data):
        self.task = get_task(name)
        self.config = task_config({"task": name, "data": {"train": "train.csv", "language": "en", **data}})


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


def test_a_file_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "input.txt").write_bytes(b"caf\xe9 .\n")
    options = argparse.Namespace(text=None, input=str(tmp_path / "input.txt"), format="lines")
    with pytest.raises(UserError, match=r"input\.txt: not UTF-8 \(.*\); convert the file"):
        list(_inputs(options, Untrained("pos")))


def test_a_line_of_two_texts(tmp_path):
    assert read(tmp_path, "A dog .\tIt sat\nNo\u2028end\tYes\n", texts=2) == [
        (["A", "dog", "."], ["It", "sat"]),
        (["No\u2028end"], ["Yes"]),
    ]
    assert read(tmp_path, text=["A dog", "It sat"], texts=2) == [(["A", "dog"], ["It", "sat"])]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"content": "a\n\nb\n"}, "input.txt, line 2: has no words"),
        ({"content": "a\nb\n \n"}, "input.txt, line 3: has no words"),
        ({"content": ""}, "input.txt: has no words"),
        ({"content": "\n \n", "format": "raw"}, "input.txt: has no words"),
        ({"content": "", "documents": True}, "input.txt: has no words"),
        ({"text": [""]}, "--text: has no words"),
        ({"text": ["a"], "format": "data"}, "--format data: needs a file"),
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


def test_a_text_of_a_classifier_is_a_line(tmp_path):
    """The training's records are whole texts too, and `data.words` says how they are split."""
    content = "He sat. She isn't here!\nYes.\n"
    expected = [["He", "sat", ".", "She", "isn", "'t", "here", "!"], ["Yes", "."]]
    for format in ("auto", "raw"):
        assert read(tmp_path, content, format=format, task="sst") == expected
    assert read(tmp_path, text=["He sat. Yes."], format="raw", task="sst") == [["He", "sat", ".", "Yes", "."]]
    assert Untrained("sst", words="spaces").split("He sat. Yes.") == [["He", "sat.", "Yes."]]
    assert Untrained("sst", train="train.txt").split("He sat. Yes.") == [["He", "sat", "."], ["Yes", "."]]  # trees
    german = Untrained("pos", language="de").split("Er kam am 3. Mai.")
    assert german != Untrained("pos", language="en").split("Er kam am 3. Mai.") and len(german) == 1
    assert Untrained("sst", words="spaces").split("这 部 电影 很 好看") == [["这", "部", "电影", "很", "好看"]]
    with pytest.raises(UserError, match="in a script without spaces"):
        Untrained("sst", words="spaces").split("这部电影很好看" * 3)
    with pytest.raises(UserError, match="input.txt, line 2: has no words"):
        read(tmp_path, "a\n\nb\n", format="raw", task="sst")


@pytest.mark.parametrize("name", ["input.txt", "-"])
@pytest.mark.parametrize(
    ("task", "content", "kind"),
    [
        ("sst", '{"text": "He sat, so.", "id": 7}\n', "JSON"),
        ("sst", 'id,text,label\n7,"He sat, so.",x\n', "columns"),
        ("pos", "1\tHe\t_\tX\n", "columns"),
        ("pos", "# sent_id = a\n1\tHe\t_\tX\n", "columns"),
        ("ner", "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\n", "columns"),
        ("ner", "-DOCSTART- -X- O O\n", "columns"),
        ("pos", "(3 (2 It) (4 works))\n", "a tree"),
    ],
)
def test_examples_are_not_read_as_prose(tmp_path, monkeypatch, name, task, content, kind):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    given = str(tmp_path / name) if name != "-" else name
    (tmp_path / "input.txt").write_text(content)
    with pytest.raises(UserError, match=f"{name}: {kind} in place of text; give a file whose name has the ending, or"):
        _inputs(argparse.Namespace(text=None, input=given, format="auto"), Untrained(task))
    assert read(tmp_path, content, format="raw", task=task)


def test_lines_that_end_like_tags_are_prose(tmp_path):
    for content in (
        "An X-ray\nA T-shirt\nThe U-Bahn\nTen words O\n",
        "Blood group O\n",
        "(1 (of 3)) Yes\n",
        "# A\nB\n",
    ):
        assert read(tmp_path, content, format="auto", task="ner")


def test_a_named_file_has_examples(tmp_path):
    (example,) = read(tmp_path, '{"text": "He sat, so.", "id": 7}\n', format="data", task="sst", name="a.jsonl")
    assert (example.id, example.texts[0]) == ("7", ["He", "sat", ",", "so", "."])
    with pytest.raises(UserError, match="a.jsonl, line 1: .*two fields of one name: text, text"):
        read(tmp_path, '{"text": "Yes", "text": "No"}\n', format="data", task="sst", name="a.jsonl")
    (prose,) = read(tmp_path, "\tHe sat, and text is a word.\n", format="auto", task="pos")
    assert prose[0] == "He"


def test_two_texts_with_commas_are_not_a_row(tmp_path):
    (actual,) = read(tmp_path, "A man, in red, walks.\tHe walks.\n", format="auto", texts=2)
    assert actual[1] == ["He", "walks", "."]


def test_a_question_is_tokenized_as_in_training():
    (question,) = Untrained("squad").split("Who isn't here?", "It’s well-known.")
    (example,) = get_task("squad").from_words(question, {})
    assert example.tokens == tokenize("Who isn't here?").words and example.paragraph.text == "It’s well-known."


@pytest.mark.parametrize(
    ("task", "name", "content", "expected"),
    [
        ("sst", "a.csv", 'id,text,label\n7,"He sat, so. Yes.",x\n8,No,\n', [("7", 7), ("8", 1)]),
        ("sst", "a.csv", "text\nYes\n", [("", 1)]),
        ("sst", "a.tsv", 'text\tlabel\n"Yes\tx\n', [("", 2)]),
        ("sst", "a.jsonl.gz", gzip.compress(b'{"text": "He sat", "id": "k"}\n', mtime=0), [("k", 2)]),
        ("sst", "a.txt", "(3 (2 It) (4 (2 is) (4 good)))\n", [("", 3)]),
        ("snli", "a.jsonl", '{"sentence1": "A dog", "sentence2": "It", "pairID": "3e"}\n', [("3e", 2)]),
        ("snli", "a.csv", 'sentence1,sentence2,gold_label\n"A, b",It,-\n', [("", 3)]),
        ("snli", "labels.test", "neutral\n", [("", 1)]),
        ("pos", "a.conllu", "# sent_id = s-1\n1\tHe\t_\tX" + "\t_" * 6 + "\n", [("s-1", 1)]),
        ("ner", "a.txt", "-DOCSTART- O\n\nRome I-LOC\nis O\n", [("", 2)]),
        ("srl", "a.bio", "1 He sat ||| B-ARG0 B-V\n", [("", 2)]),
    ],
)
def test_a_file_that_training_reads_is_not_prose(tmp_path, task, name, content, expected):
    if name == "labels.test":
        for other in ("s1.test", "s2.test"):
            (tmp_path / other).write_text("Yes\n")
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    options = argparse.Namespace(text=None, input=str(path), format="auto")
    trained = Untrained(task, train=f"train{path.suffix}", **({"format": "bio"} if task == "srl" else {}))
    actual = _inputs(options, trained)
    assert [(e.id, len(trained.task.texts(e)[0][0])) for e in actual] == expected


def test_documents_and_questions_are_read_without_answers(tmp_path):
    question = {"id": "q", "question": "Who?"}
    data = {"data": [{"title": "t", "paragraphs": [{"context": "Ada.", "qas": [question]}]}]}
    (tmp_path / "a.json").write_text(json.dumps(data))
    (example,) = Untrained("squad").read(str(tmp_path / "a.json"))
    assert (example.id, example.answers) == ("q", [])
    (tmp_path / "a.jsonlines").write_text('{"doc_key": "nw_0", "sentences": [["Ada", "."]]}\n')
    (document,) = Untrained("coref").read(str(tmp_path / "a.jsonlines"))
    assert document.id == "nw_0"


def test_a_file_that_is_neither_is_named(tmp_path):
    with pytest.raises(UserError, match="a.csv, line 2: expected 2 columns, found 3"):
        read(tmp_path, "text,label\na,b,c\n", format="auto", task="sst", name="a.csv")
    with pytest.raises(UserError, match="line 1: expected 10 columns"):
        read(tmp_path, "He sat.\n", format="data")
    assert read(tmp_path, "He sat.\n", format="auto") == [["He", "sat", "."]]
    (tmp_path / "ner.txt").write_text("Rome\tB-LOC\nis\n")
    options = argparse.Namespace(text=None, input=str(tmp_path / "ner.txt"), format="auto")
    with pytest.raises(
        UserError, match="ner.txt, line 2: expected 2 columns, .* if this is running text, give --format"
    ):
        _inputs(options, Untrained("ner", train="train.txt"))
    with pytest.raises(UserError, match="ner.txt: columns in place of text"):
        _inputs(options, Untrained("ner"))
    with pytest.raises(UserError, match="nowhere.csv: cannot be read"):
        Untrained("sst").read(str(tmp_path / "nowhere.csv"))


class Stub:
    """A task model that returns its input."""

    task = get_task("pos")
    config = task.config_class()

    def stream(self, inputs):
        return ({"tokens": words} for words in inputs)

    def pairs(self, inputs):
        return ((TaggedSentence(words, []), ["NOUN"] * len(words)) for words in inputs)

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
        lines = text.strip().splitlines()
        words = json.loads(text)["tokens"] if kind == "json" else [line.split("\t")[0] for line in lines]
        assert words == ["Größe", "…", "大"]


@pytest.mark.parametrize("format", ["raw", "lines"])
def test_text_without_spaces_is_refused(tmp_path, format):
    with pytest.raises(UserError, match="is in a script without spaces between words"):
        read(tmp_path, "艾达在一八四三年写了它。\n", format=format)


def test_compressed_text_is_decompressed(tmp_path):
    (tmp_path / "input.txt.gz").write_bytes(gzip.compress(b"He sat. She ran!\n"))
    options = argparse.Namespace(text=None, input=str(tmp_path / "input.txt.gz"), format="auto")
    assert list(_inputs(options, Untrained("pos"))) == [["He", "sat", "."], ["She", "ran", "!"]]


def test_sentences_without_tags_are_read_to_be_tagged(tmp_path):
    (tmp_path / "a.conllu").write_text("# sent_id = s1\n1\tHe\t_\t_\t_\t_\t_\t_\t_\t_\n")
    (example,) = Untrained("pos").read(str(tmp_path / "a.conllu"))
    assert (example.tokens, example.tags, example.id) == (["He"], [], "s1")
    (tmp_path / "a.txt").write_text("He\nsat\n")
    (example,) = Untrained("ner").read(str(tmp_path / "a.txt"))
    assert (example.tokens, example.tags) == (["He", "sat"], [])


def test_a_setting_of_the_training_is_not_offered_as_an_option(tmp_path):
    (tmp_path / "a.tsv").write_text("He\tO\n\tO\n")
    with pytest.raises(UserError, match=r"empty_words=skip; these are settings of a training, and this model reads as"):
        Untrained("ner", scheme="bio").read(str(tmp_path / "a.tsv"))


def test_a_pipe_is_read_once():
    read, write = os.pipe()
    os.write(write, b"He sat.\n")
    os.close(write)
    options = argparse.Namespace(text=None, input=f"/dev/fd/{read}", format="raw")
    assert list(_inputs(options, Untrained("pos"))) == [["He", "sat", "."]]
    os.close(read)
