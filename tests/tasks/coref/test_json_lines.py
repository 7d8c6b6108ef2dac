import json

import pytest

from elmo_jax.tasks.coref.reader import Document, read_json_lines
from elmo_jax.tasks.coref.task import TASK
from tests.tasks.coref.test_reader import document
from tests.tasks.format_cases import message, write

LINE = {
    "doc_key": "nw/a_0001_2",
    "sentences": [["He", "saw", "Bo", "Li"], ["Bo", "?"]],
    "speakers": [["Ann"] * 4, ["Bob"] * 2],
    "clusters": [[[4, 4], [2, 3]], [[0, 0]]],
}


def test_json_lines(tmp_path):
    path = write(tmp_path, json.dumps(LINE) + "\n\n" + json.dumps({"sentences": [["x"]], "doc_key": "d"}) + "\n")
    assert read_json_lines(path, "drop", annotated=False) == [
        Document("nw/a_0001", "002", "nw", LINE["sentences"], LINE["speakers"], [[(2, 3), (4, 4)]], "nw/a_0001_2"),
        Document("d", "0", None, [["x"]], [["-"]], [], "d"),
    ]
    documents = read_json_lines(path, annotated=False)
    assert [document.id for document in documents] == ["nw/a_0001_2", "d"]
    assert documents[0].clusters == [[(0, 0)], [(2, 3), (4, 4)]]
    assert message(read_json_lines, path) == "line 3: 'clusters': expected lists of [first, last] word, from 0 to 0"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"sentences": "He"}, "expected an object with 'sentences', lists of words, as e2e-coref has it"),
        ({"sentences": [["He"], []]}, "expected an object with 'sentences', lists of words, as e2e-coref has it"),
        ({"sentences": [["He", "\n"]]}, "the word '\\n': expected words without spaces"),
        ({"sentences": [["New York"]]}, "the word 'New York': expected words without spaces"),
        ({"speakers": [["Ann"] * 4]}, "'speakers': expected one for every word of 'sentences'"),
        ({"clusters": [[[4, 6]]]}, "'clusters': expected lists of [first, last] word, from 0 to 5"),
        ({"clusters": [[[3, 2]]]}, "'clusters': expected lists of [first, last] word, from 0 to 5"),
        ({"clusters": [[[True, 2]]]}, "'clusters': expected lists of [first, last] word, from 0 to 5"),
    ],
)
def test_json_lines_that_are_wrong(tmp_path, change, expected):
    path = write(tmp_path, "\n" + json.dumps({**LINE, **change}))
    assert message(read_json_lines, path).startswith(f"line 2: {expected}")


def test_the_name_of_a_file_decides(tmp_path):
    (tmp_path / "b.jsonlines").write_text(json.dumps(LINE) + "\n")
    (tmp_path / "a.conll").write_text(document([("a", "-")], name="nw/b"))
    (tmp_path / "other.txt").write_text("")
    actual = TASK.read(str(tmp_path), TASK.config_class(), "evaluation")
    assert [document.name for document in actual] == ["nw/b", "nw/a_0001"]
