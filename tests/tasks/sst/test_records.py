import gzip
import json

import pytest

from elmo_jax.errors import UserError
from elmo_jax.tasks.core.classification import ClassifiedTexts, ClassPrediction
from elmo_jax.tasks.sst.task import LABELS, TASK, SSTDataConfig, read_texts, splitter
from tests.tasks.format_cases import message, write


def example(text, label):
    return ClassifiedTexts((text.split(),), label)


def test_json_lines(tmp_path):
    lines = [{"review": "It isn't bad.", "stars": 4}, {"review": ["a", "b c"], "stars": "low"}]
    path = write(tmp_path, "\n".join(map(json.dumps, lines)), "a.jsonl")
    actual = read_texts(path, "review", "stars", splitter("moses"))
    assert actual == [example("It isn 't bad .", "4"), ClassifiedTexts((["a", "b c"],), "low")]
    assert read_texts(path, "review", "stars", splitter("spaces"))[0] == example("It isn't bad.", "4")


TABLE = 'label,text\nx,"one, ""two""\nthree"\ny,four\n'


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.tsv", "\t")])
def test_columns(tmp_path, name, delimiter):
    text = TABLE.replace(", ", ";").replace(",", delimiter)
    expected = [example('one;"two" three', "x"), example("four", "y")]
    assert read_texts(write(tmp_path, text, name), "text", "label", splitter("spaces"), "csv") == expected
    packed = write(tmp_path, gzip.compress(b"\xef\xbb\xbf" + text.encode()), f"{name}.gz")
    assert read_texts(packed, "text", "label", splitter("spaces"), "csv") == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.jsonl", '{"text": "a"}', "line 1: expected a text 'text' and a label 'label' (config.data.text and"),
        ("a.jsonl", '{"text": ["a", ""], "label": "x"}', "line 1: expected a text 'text' and a label 'label'"),
        ("a.jsonl", '\n[1]', "line 2: expected a JSON object, found '[1]'"),
        ("a.jsonl", '{"text": "a", "label": true}', "line 1: expected a text 'text' and a label 'label'"),
        ("a.jsonl", '{"text": " ", "label": "x"}', "line 1: the text is empty; remove the record"),
        ("a.csv", "text,label\na,\n", "line 2: the label is empty; remove the record"),
        ("a.csv", "text,class\na,x\n", "line 2: expected a text 'text' and a label 'label'"),
        ("a.csv", 'text,label\n"a"b,x\n', "line 2: not a row of quoted cells ("),
        ("a.csv", b"text,label\n\xff,x\n", "line 2: byte 0xff is not UTF-8; convert the file to UTF-8"),
    ],
)  # fmt: skip
def test_records_that_are_wrong(tmp_path, name, text, expected):
    assert message(read_texts, write(tmp_path, text, name), "text", "label", splitter("spaces")).startswith(expected)


def test_the_classes_are_those_of_the_training_examples(tmp_path):
    config = TASK.config_class(data=SSTDataConfig(words="spaces"))
    train = TASK.read(str(write(tmp_path, "text,label\na,spam\nb,ham\n", "a.csv")), config, "training")
    assert TASK.labels(train, config) == {"classes": ["ham", "spam"]}
    other = [*train, example("c", "eggs")]
    arrays = TASK.arrays(other, 4, (), {"classes": ["ham", "spam"]})
    assert arrays["label"].tolist() == [1, 0, 0, 0] and TASK.written("spam", ["ham", "spam"]) == "spam"
    trees = TASK.config_class(data=SSTDataConfig(train="train.txt"))
    assert TASK.labels([example("a", "positive")], trees)["classes"][4] == "very positive"
    with pytest.raises(UserError, match="all examples have the label 'spam'; expected two or more"):
        TASK.labels(train[:1], config)


def test_labels_keep_their_names(tmp_path):
    text = "text,label\na fine film,positive\nvery dull, negative\nso weak,negative \n"
    path = write(tmp_path, text, "a.csv")
    config = TASK.config_class(data=SSTDataConfig(words="spaces", train=str(path)))
    classes = TASK.labels(TASK.read(str(path), config, "training"), config)["classes"]
    assert classes == ["negative", "positive"]
    predictions = [ClassPrediction("positive", {"negative": 0.3, "positive": 0.7})]
    assert TASK.write([example("a", "negative")], predictions) == "negative\tpositive\ta\n"
    trees = [ClassPrediction("positive", dict.fromkeys(LABELS, 0.2))]
    assert TASK.write([example("a", "negative")], trees) == "1\t3\ta\n"


def test_a_record_may_have_an_id_and_without_annotation_no_label(tmp_path):
    path = write(tmp_path, '{"id": 7, "text": "a b"}\n{"text": "c", "label": "x"}\n', "a.jsonl")
    actual = read_texts(path, "text", "label", splitter("spaces"), annotated=False)
    assert [(e.id, e.texts, e.label) for e in actual] == [("7", (["a", "b"],), ""), ("", (["c"],), "x")]
