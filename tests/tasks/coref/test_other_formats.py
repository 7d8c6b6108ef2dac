import json

import pytest

from elmo_jax.tasks.coref.other_formats import read_corefud, read_json_lines
from elmo_jax.tasks.coref.reader import Document
from elmo_jax.tasks.coref.task import TASK, CorefConfig
from tests.tasks.format_cases import message, write

LINE = {
    "doc_key": "nw/a_0001_2",
    "sentences": [["He", "saw", "Bo", "Li"], ["Bo", "?"]],
    "speakers": [["Ann"] * 4, ["Bob"] * 2],
    "clusters": [[[4, 4], [2, 3]], [[0, 0]]],
}


def words(*rows, comments=("newdoc id = nw_d",)):
    """CoNLL-U of one sentence, whose rows are (id, word, entities)."""
    lines = [f"# {comment}" for comment in comments]
    lines += [
        f"{i}\t{word}" + "\t_" * 7 + f"\t{entity and f'X=1|Entity={entity}|' or ''}Y=2" for i, word, entity in rows
    ]
    return "\n".join([*lines, "", ""])


def test_json_lines(tmp_path):
    path = write(tmp_path, json.dumps(LINE) + "\n\n" + json.dumps({"sentences": [["x"]], "doc_key": "d"}) + "\n")
    assert read_json_lines(path, "drop") == [
        Document("nw/a_0001", "2", "nw", LINE["sentences"], LINE["speakers"], [[(2, 3), (4, 4)]]),
        Document("d", "0", None, [["x"]], [["-"]], []),
    ]
    assert read_json_lines(path)[0].clusters == [[(0, 0)], [(2, 3), (4, 4)]]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"sentences": "He"}, "expected an object with 'sentences', lists of words, as e2e-coref has it"),
        ({"sentences": [["He"], []]}, "expected an object with 'sentences', lists of words, as e2e-coref has it"),
        ({"speakers": [["Ann"] * 4]}, "'speakers': expected one for every word of 'sentences'"),
        ({"clusters": [[[4, 6]]]}, "'clusters': expected lists of [first, last] word, from 0 to 5"),
        ({"clusters": [[[3, 2]]]}, "'clusters': expected lists of [first, last] word, from 0 to 5"),
        ({"clusters": [[[True, 2]]]}, "'clusters': expected lists of [first, last] word, from 0 to 5"),
    ],
)
def test_json_lines_that_are_wrong(tmp_path, change, expected):
    path = write(tmp_path, "\n" + json.dumps({**LINE, **change}))
    assert message(read_json_lines, path) == f"line 2: {expected}"


def test_corefud(tmp_path, capsys):
    text = words(
        ("1-2", "aux", ""),
        ("1", "a", "(e1-x-1(e2-y-1)"),
        ("2", "le", "(e3[1/2]-z"),
        ("3", "b", "e1)e3[1/2])"),
        ("3.1", "_", "(e4-x-1)"),
        ("4", "c", "(e3[2/2]-z)(e2-y-1)"),
        comments=("newdoc id = nw_d", "global.Entity = eid-etype-head", "speaker = Ann"),
    )
    text += words(("1", "d", "(e1-x-1)"), comments=())
    text += words(("1", "e", "(t-1)"), ("2", "f", "(u-1)"), comments=("newdoc id = d2", "global.Entity = etype-eid"))
    path = write(tmp_path, text)
    assert read_corefud(path) == [
        Document(
            "nw_d",
            "0",
            "nw",
            [["a", "le", "b", "c"], ["d"]],
            [["Ann"] * 4, ["-"]],
            [[(0, 0), (3, 3)], [(0, 2), (4, 4)], [(1, 3)]],
        ),
        Document("d2", "0", None, [["e", "f"]], [["-", "-"]], [[(0, 0), (1, 1)]]),
    ]
    printed = capsys.readouterr().err
    assert "mentions that are not continuous, read from their first to their last word: 1" in printed
    assert "mentions of empty nodes left out: 1" in printed
    assert [len(found.clusters) for found in read_corefud(path, "drop")] == [2, 1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (words(("1", "a", "e1)")), "line 2: 'e1)' closes a mention that was not opened"),
        (words(("1", "a", "(e1-x")), "line 2: '(e1' opens a mention that the document does not close"),
        ("# newdoc id = d\n1\ta\n", "line 2: expected 10 columns, as in CoNLL-U, found 2"),
    ],
)
def test_corefud_that_is_wrong(tmp_path, text, expected):
    assert message(read_corefud, write(tmp_path, text)) == expected


def test_the_name_of_a_file_decides(tmp_path):
    (tmp_path / "b.jsonlines").write_text(json.dumps(LINE) + "\n")
    (tmp_path / "a.conllu").write_text(words(("1", "a", "(e1-x)")))
    (tmp_path / "other.txt").write_text("")
    found = TASK.read(str(tmp_path), CorefConfig(), training=False)
    assert [document.name for document in found] == ["nw_d", "nw/a_0001"]
