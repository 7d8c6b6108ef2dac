import json

import pytest

from elmo_jax.errors import UserError
from elmo_jax.tasks.formats.sources import read_part
from elmo_jax.tasks.squad.reader import nearest, read
from elmo_jax.tasks.squad.task import TASK, SquadDataConfig
from tests.tasks.format_cases import message, write

CONTEXT = "😀 In 1990, John's dog (Rex) saw Rex. Rex ran."


def question(text="Who ran?", answers=(("Rex", 23),), name="q"):
    answers = [{"text": answer, "answer_start": start} for answer, start in answers]
    return {"id": name, "question": text, "answers": answers}


def squad(*questions, context=CONTEXT):
    paragraphs = [{"context": context, "qas": list(questions)}]
    return {"version": "1.1", "data": [{"title": "Dogs", "paragraphs": paragraphs}]}


def read_json(tmp_path, value, **options):
    return read(write(tmp_path, json.dumps(value, ensure_ascii=False, indent=1), "a.json"), **options)


def test_questions(tmp_path, capsys):
    actual = read_json(
        tmp_path, squad(question(answers=[("John's dog", 11), ("Rex", 32)]), question("“It”?", name="r"))
    )
    first, second = actual
    assert (first.id, second.id) == ("q", "r")
    assert first.tokens == ["Who", "ran", "?"] and second.tokens == ['"', "It", '"', "?"]
    assert first.answers == ["John's dog", "Rex"]
    assert first.paragraph is second.paragraph and first.paragraph.title == "Dogs"
    assert first.paragraph.tokens.words == "😀 In 1990 , John ' s dog ( Rex ) saw Rex . Rex ran .".split()
    assert first.span == (4, 7) and first.paragraph.answer(*first.span) == "John's dog"
    assert second.span == (9, 9)
    assert not capsys.readouterr().err


def test_an_answer_inside_a_word_has_the_whole_word(tmp_path, capsys):
    actual = read_json(tmp_path, squad(question(answers=[("99", 6)]), question(answers=[(" Rex ", 22)], name="r")))
    example, _ = actual
    assert capsys.readouterr().err.endswith("as whole words: 1\n")
    assert example.paragraph.answer(*example.span) == "1990" and example.answers == ["99"]


def test_an_id_that_two_questions_have_is_named(tmp_path):
    path = write(tmp_path, json.dumps(squad(question(), question("Who?"))), "a.json")
    expected = "a.json: two questions have the id 'q'; ids must be unique, since answers refer to them"
    with pytest.raises(UserError, match=expected):
        read(path)
    assert len(read_json(tmp_path, squad(question(name=""), question(name="")))) == 2
    other = write(tmp_path, json.dumps(squad(question())), "b.json")
    once = write(tmp_path, json.dumps(squad(question())), "c.json")
    config = TASK.config_class(data=SquadDataConfig(train=f"{other},{once}", dev=f"{other},{once}"))
    assert len(read_part(TASK, config, "train")) == 2
    with pytest.raises(UserError, match=r"^config.data.dev: the sources .*b.json,.*c.json have two .* the id 'q'"):
        read_part(TASK, config, "dev")


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_answer_and_none_are_no_training_target(tmp_path, capsys, text):
    value = squad(question(answers=[(text, 23), ("Rex", 23)]), question(name="r"))
    path = write(tmp_path, json.dumps(value), "a.json")
    with pytest.raises(
        UserError,
        match=r"a.json, .*\[0\]: the question 'q' has no answers, or the first one is empty; config.data.missing",
    ):
        read(path)
    value["data"][0]["paragraphs"][0]["qas"].append(question(answers=(), name="s") | {"is_impossible": True})
    actual = read_json(tmp_path, value, missing="skip")
    assert [example.id for example in actual] == ["r"]
    assert capsys.readouterr().err.endswith("not in the paragraph: 2\n")


@pytest.mark.parametrize(
    ("stated", "start"), [(23, 23), (0, 23), (27, 23), (28, 32), (34, 32), (35, 37), (99, 37), (-9, 23)]
)
def test_the_nearest_occurrence_is_taken(tmp_path, capsys, stated, start):
    actual = read_json(tmp_path, squad(question(answers=[("Rex", stated)])))
    (example,) = actual
    assert example.paragraph.tokens.starts[example.span[0]] == start
    assert ("nearest occurrence used: 1\n" in capsys.readouterr().err) == (stated != start)


def test_of_two_equally_near_occurrences_the_first_is_taken():
    assert nearest("x..x", "x", 1) == 0 and nearest("x.x", "x", 1) == 0
    assert nearest("baaac", "aa", 3) == 2  # occurrences may overlap
    assert nearest("abc", "d", 0) is None


def test_an_answer_that_is_not_in_the_paragraph(tmp_path, capsys):
    value = squad(
        question(answers=[("Max", 0), ("Rex", 23)]), question(name="r"), question(answers=[(" ", 3)], name="s")
    )
    with pytest.raises(UserError) as error:
        read_json(tmp_path, value)
    position = f"{tmp_path / 'a.json'}, data[0].paragraphs[0].qas[0]"
    advice = "config.data.missing=skip leaves such questions out"
    assert str(error.value) == f"{position}: the answer 'Max' to question 'q' is not in its paragraph; {advice}"
    actual = read_json(tmp_path, value, missing="skip")
    assert [example.id for example in actual] == ["r"]
    assert capsys.readouterr().err.endswith("not in the paragraph: 2\n")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"id": 5}, ".id: expected a string, found '5'"),
        ({"question": None}, ".question: expected a string, found 'None'"),
        ({"question": " "}, ": the question 'q' has no words"),
        ({"answers": {}}, ".answers: expected a list, found '{}'"),
        (
            {"answers": []},
            ": the question 'q' has no answers, or the first one is empty; config.data.missing=skip leaves such"
            " questions out",
        ),
        ({"answers": [{"text": "Rex"}]}, ".answers[0].answer_start: expected a whole number, found 'None'"),
        (
            {"answers": [{"text": "Rex", "answer_start": True}]},
            ".answers[0].answer_start: expected a whole number, found 'True'",
        ),
        (
            {"answers": [{"text": "Rex", "answer_start": 23}, "Rex"]},
            ".answers[1].text: expected a string, found 'None'",
        ),
    ],
)
def test_fields_that_are_not_as_they_should_be(tmp_path, change, expected):
    path = write(tmp_path, json.dumps(squad(question() | change)))
    assert message(read, path) == f"data[0].paragraphs[0].qas[0]{expected}"


@pytest.mark.parametrize("missing", ["error", "unknown"])
def test_a_paragraph_without_words(tmp_path, missing):
    value = squad(question())
    value["data"][0]["paragraphs"][0]["context"] = " \n"
    actual = message(read, write(tmp_path, json.dumps(value)), missing)
    assert actual == "data[0].paragraphs[0].qas[0]: the paragraph of the question 'q' has no words"


def test_files_that_are_not_squad(tmp_path):
    assert message(read, write(tmp_path, "[]")) == "data: expected a list, found 'None'"
    assert message(read, write(tmp_path, '{"data": [1]}')) == "data[0].title: expected a string, found 'None'"
    assert message(read, write(tmp_path, '{"data":\n[}')).startswith("line 2: not JSON (")


def test_questions_of_squad_2_without_an_answer_are_missing(tmp_path):
    impossible = question(answers=(), name="r") | {"is_impossible": True, "plausible_answers": [{"text": "Rex"}]}
    value = squad(question() | {"is_impossible": False}, impossible)
    assert [example.id for example in read_json(tmp_path, value, missing="skip")] == ["q"]
    with pytest.raises(UserError, match=r"qas\[1\]: the question 'r' has no answers, .*data.missing=skip leaves"):
        read_json(tmp_path, value)
