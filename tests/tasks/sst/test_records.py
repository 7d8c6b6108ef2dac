import gzip
import json

import pytest

from elmo_jax.errors import UserError
from elmo_jax.tasks.core.classification import ClassifiedTexts
from elmo_jax.tasks.sst.records import read_records
from elmo_jax.tasks.sst.task import TASK, SSTConfig, SSTDataConfig
from tests.tasks.format_cases import message, write


def example(text, label):
    return ClassifiedTexts((text.split(),), label)


def test_json_lines(tmp_path):
    lines = [{"review": "It isn't bad.", "stars": 4}, {"review": ["a", "b c"], "stars": "low"}]
    path = write(tmp_path, "\n".join(map(json.dumps, lines)), "a.jsonl")
    found = read_records(path, "review", "stars", "moses")
    assert found == [example("It isn 't bad .", "4"), ClassifiedTexts((["a", "b c"],), "low")]
    assert read_records(path, "review", "stars", "spaces")[0] == example("It isn't bad.", "4")


TABLE = 'label,text\nx,"one, ""two""\nthree"\ny,four\n'


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.tsv", "\t")])
def test_columns(tmp_path, name, delimiter):
    text = TABLE.replace(", ", ";").replace(",", delimiter)
    expected = [example('one;"two" three', "x"), example("four", "y")]
    assert read_records(write(tmp_path, text, name), "text", "label", "spaces") == expected
    packed = write(tmp_path, gzip.compress(b"\xef\xbb\xbf" + text.encode()), f"{name}.gz")
    assert read_records(packed, "text", "label", "spaces") == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.jsonl", '{"text": "a"}', "line 1: expected a text 'text' and a label 'label' (config.data.text and"),
        ("a.jsonl", '{"text": ["a", ""], "label": "x"}', "line 1: expected a text 'text' and a label 'label'"),
        ("a.jsonl", '\n[1]', "line 2: expected a text 'text' and a label 'label'"),
        ("a.jsonl", '{"text": "a", "label": true}', "line 1: expected a text 'text' and a label 'label'"),
        ("a.jsonl", '{"text": " ", "label": "x"}', "line 1: the text is empty; remove the record"),
        ("a.csv", "text,label\na,\n", "line 2: the label is empty; remove the record"),
        ("a.csv", "text,class\na,x\n", "line 2: expected a text 'text' and a label 'label'"),
        ("a.csv", 'text,label\n"a"b,x\n', "line 2: not CSV ("),
        ("a.csv", b"text,label\n\xff,x\n", "line 1: not UTF-8 (invalid start byte); convert the file"),
    ],
)  # fmt: skip
def test_records_that_are_wrong(tmp_path, name, text, expected):
    assert message(read_records, write(tmp_path, text, name), "text", "label", "spaces").startswith(expected)


def test_the_classes_are_those_of_the_training_examples(tmp_path):
    config = SSTConfig(data=SSTDataConfig(words="spaces"))
    train = TASK.read(str(write(tmp_path, "text,label\na,spam\nb,ham\n", "a.csv")), config, training=True)
    assert TASK.labels(train, config) == {"classes": ["ham", "spam"]}
    other = [*train, example("c", "eggs")]
    arrays = TASK.arrays(other, 4, (), {"classes": ["ham", "spam"]})
    assert arrays["label"].tolist() == [1, 0, 0, 0] and TASK.written("spam") == "spam"
    assert TASK.labels([example("a", "positive")], config)["classes"][4] == "very positive"
    with pytest.raises(UserError, match="all examples have the label 'spam'; expected two or more"):
        TASK.labels(train[:1], config)
