import json
from types import SimpleNamespace

import pytest

from elmo_jax.errors import UserError
from elmo_jax.tasks.core.classification import ClassifiedTexts
from elmo_jax.tasks.snli.task import TASK, read
from tests.tasks.format_cases import message, write

RECORDS = [
    {
        "gold_label": "neutral",
        "sentence1_binary_parse": "( ( A man ) ( -LRB- ( old -RRB- ) ) )",
        "sentence2_binary_parse": "( He ( says ( `` ( hi '' ) ) ) )",
        "sentence1": "not read",
    },
    {"gold_label": "-", "sentence1_binary_parse": "( a b )", "sentence2_binary_parse": "c"},
    {"gold_label": "entailment", "sentence1_binary_parse": "( It ran )", "sentence2_binary_parse": "Yes"},
]


def test_json_lines_have_the_leaves_of_the_parses(tmp_path, capsys):
    path = write(tmp_path, "".join(json.dumps(record) + "\n" for record in RECORDS), "a.jsonl")
    actual = read(path)
    assert actual == [
        ClassifiedTexts((["A", "man", "(", "old", ")"], ["He", "says", '"', "hi", '"']), "neutral"),
        ClassifiedTexts((["It", "ran"], ["Yes"]), "entailment"),
    ]
    assert capsys.readouterr().err.endswith("did not agree on a label: 1\n")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"gold_label": "maybe"}, "expected a label of entailment, neutral, contradiction or '-', found 'maybe'"),
        ({"gold_label": 1}, "expected a string 'gold_label', found 1"),
        ({"sentence1_binary_parse": "( )"}, "the premise has no words"),
        ({"sentence2_binary_parse": ""}, "the hypothesis has no words"),
        (
            {"sentence2_binary_parse": None},
            "expected a string 'sentence2_binary_parse', found None",
        ),
    ],
)
def test_records_that_are_no_pairs(tmp_path, change, expected):
    lines = [json.dumps(RECORDS[0]), json.dumps(RECORDS[2] | change)]
    assert message(read, write(tmp_path, "\n".join(lines), "a.jsonl")) == f"line 2: {expected}"


def test_lines_that_are_not_json_objects(tmp_path):
    expected = "line 1: not JSON (Expecting ',' delimiter, character 9)"
    assert message(read, write(tmp_path, '{"a": 1 ', "a.jsonl")) == expected
    assert "line 1: expected a JSON object, found '[]'" in message(read, write(tmp_path, "[]", "a.jsonl"))


def test_tab_file_without_header(tmp_path, capsys):
    path = write(tmp_path, 'neutral\tIt isn’t.\tA "dog"--old.\n\n-\ta\tb\ncontradiction\tHe won. It rained.\tNo\n')
    actual = read(path)
    assert actual == [
        ClassifiedTexts((["It", "isn", "'t", "."], ["A", '"', "dog", '"', "--", "old", "."]), "neutral"),
        ClassifiedTexts((["He", "won", ".", "It", "rained", "."], ["No"]), "contradiction"),
    ]
    assert capsys.readouterr().err.endswith("did not agree on a label: 1\n")


def test_tab_file_with_header(tmp_path):
    path = write(tmp_path, "sentence1\tsentence2\tgold_label\nIt ran.\tYes\tneutral\n")
    assert read(path) == [ClassifiedTexts((["It", "ran", "."], ["Yes"]), "neutral")]


@pytest.mark.parametrize("annotated", [True, False])
def test_names_of_other_copies_of_snli(tmp_path, annotated):
    pairs = [ClassifiedTexts((["It", "ran"], ["Yes"]), "neutral" if annotated else "")]
    assert (
        read(write(tmp_path, "label,premise,hypothesis\nneutral,It ran,Yes\n", "a.csv"), annotated=annotated) == pairs
    )
    assert (
        read(write(tmp_path, "premise,hypothesis,label\nIt ran,Yes,neutral\n", "b.csv"), annotated=annotated) == pairs
    )
    record = {"premise": "It ran", "hypothesis": "Yes", "label": "neutral", "pairID": None}
    assert read(write(tmp_path, json.dumps(record), "c.jsonl"), annotated=annotated) == pairs


def test_a_header_of_unknown_names_is_no_pair_to_predict(tmp_path):
    path = write(tmp_path, "text_a\ttext_b\tclass\nIt ran\tYes\tneutral\n")
    expected = (
        "line 1: expected columns with the names gold_label, sentence1, sentence2, or a label first, found 'text_a'"
    )
    assert message(read, path, annotated=False) == expected
    for label in ("", "-", "neutral"):
        assert len(read(write(tmp_path, f"{label}\tIt ran\tYes\n"), annotated=False)) == 1


def test_tab_file_of_snli_has_parses(tmp_path):
    header = "gold_label\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1\tsentence2\n"
    path = write(tmp_path, header + "neutral\t( It ran )\tYes\tx\ty\n")
    assert read(path) == [ClassifiedTexts((["It", "ran"], ["Yes"]), "neutral")]


def test_quoted_cells(tmp_path):
    path = write(tmp_path, 'sentence1\tsentence2\tgold_label\n"The ""big"" one"\tYes\tneutral\n')
    assert read(path, "csv")[0].texts[0] == ["The", '"', "big", '"', "one"]
    assert read(path)[0].texts[0].count('"') == 6
    unclosed = write(tmp_path, 'neutral\t"a\tb\n')
    assert message(read, unclosed, "csv").startswith("line 1: not a row of quoted cells (")
    assert read(unclosed)[0].texts[1] == ["b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("neutral\ta\tb\nneutral\ta\n", "line 2: expected 3 columns, found 2 separated by tabs"),
        (
            "label\ta\tb\n",
            "line 1: expected a label of entailment, neutral, contradiction or '-', found 'label'",
        ),
        ("gold_label\tsentence1\nneutral\ta\n", "line 2: expected a string 'sentence2', found None"),
        ("neutral\ta\t \n", "line 1: the hypothesis has no words"),
    ],
)
def test_lines_that_are_no_pairs(tmp_path, text, expected):
    assert message(read, write(tmp_path, text)) == expected


def parallel(tmp_path, labels, premises, hypotheses):
    texts = {"s1.dev": premises, "s2.dev": hypotheses, "labels.dev": labels}
    return [write(tmp_path, text, name) for name, text in texts.items()][-1]


def test_parallel_files(tmp_path, capsys):
    path = parallel(tmp_path, "neutral\n-\nentailment\n", "A cat . \nx\n-LRB- so\n", "`` It ''\nx\nYes\n")
    actual = read(path)
    assert actual == [
        ClassifiedTexts((["A", "cat", "."], ['"', "It", '"']), "neutral"),
        ClassifiedTexts((["(", "so"], ["Yes"]), "entailment"),
    ]
    assert capsys.readouterr().err.endswith("did not agree on a label: 1\n")


def test_parallel_files_keep_round_brackets(tmp_path):
    (example,) = read(parallel(tmp_path, "neutral\n", "A man ( old )\n", "( He -RRB-\n"))
    assert example.texts == (["A", "man", "(", "old", ")"], ["(", "He", ")"])


def test_parallel_files_that_do_not_agree(tmp_path):
    path = parallel(tmp_path, "neutral\nneutral\n", "a\nb\n", "a\n")
    with pytest.raises(UserError, match="labels.dev, line 2: .*s2.dev has no such line; the files must"):
        read(path)
    path = parallel(tmp_path, "neutral\nneutral\n", "a\nb\n", "a\n \n")
    with pytest.raises(UserError, match="labels.dev, line 2: the hypothesis has no words"):
        read(path)
    path = parallel(tmp_path, "x\n", "a\n", "a\n")
    with pytest.raises(UserError, match="labels.dev, line 1: expected a label of"):
        read(path)


def test_a_tfds_dataset(capsys):
    names = ["entailment", "neutral", "contradiction"]
    pairs = [(b"It ran.", b"Yes", 1), (b"x", b"y", -1), (b"A cat", b"No cat", 2)]
    records = [dict(zip(("premise", "hypothesis", "label"), pair, strict=True)) for pair in pairs]

    def read_with(names):
        return TASK.from_tfds("tfds:snli", {"label": SimpleNamespace(names=names)}, records, TASK.config_class())

    assert read_with(names) == [
        ClassifiedTexts((["It", "ran", "."], ["Yes"]), "neutral"),
        ClassifiedTexts((["A", "cat"], ["No", "cat"]), "contradiction"),
    ]
    assert capsys.readouterr().err.endswith("did not agree on a label: 1\n")
    with pytest.raises(UserError, match="tfds:snli: expected the labels .*, found duplicate, other"):
        read_with(["duplicate", "other"])


def test_labels_that_need_not_be_there_may_be_of_any_kind(tmp_path):
    lines = [json.dumps({"gold_label": label, "sentence1": "A dog", "sentence2": "It"}) for label in (None, 2, "x")]
    path = write(tmp_path, "\n".join(lines), name="hidden.jsonl")
    assert [example.label for example in read(path, annotated=False)] == ["", "", ""]
