"""Tests the task of question answering beyond its reader, model and metric."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.errors import UserError
from elmo_jax.tasks.formats.sources import read_part, split_brackets
from elmo_jax.tasks.squad.task import TASK, SquadDataConfig
from tests.tasks import checks

TEXT = "Ada Lovelace wrote well-known notes in 1843."


def article(title, *questions):
    qas = [
        {"id": f"{title}{i}", "question": question, "answers": [{"text": text, "answer_start": TEXT.index(text)}]}
        for i, (question, text) in enumerate(questions)
    ]
    return {"title": title, "paragraphs": [{"context": TEXT, "qas": qas}]}


ARTICLES = [article("a", ("Who wrote?", "Ada Lovelace"), ("When?", "1843")), article("b", ("What?", "notes"))]


def certain(place, number):
    return np.eye(number, dtype=np.float32)[place]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "questions.json"
    path.write_text(json.dumps({"version": "1.1", "data": ARTICLES}))
    return str(path)


def test_articles_of_a_file_are_chosen_with_a_slice(file):
    config = TASK.config_class()
    assert [e.id for e in TASK.read(file, config, "training")] == ["a0", "a1", "b0"]
    assert [e.id for e in TASK.read(f"{file}[1:]", config, "training")] == ["b0"]
    assert [e.id for e in TASK.read(f"{file}[:-1]", config, "training")] == ["a0", "a1"]


@pytest.mark.parametrize("order", [1, -1])
def test_articles_of_a_file_are_chosen_by_title_in_any_order(tmp_path, order):
    path = tmp_path / "questions.json"
    articles = [
        article(title, ("Who?", "Ada Lovelace")) for title in ("Fresno,_California", "Sky_(United_Kingdom)", "c")
    ]
    path.write_text(json.dumps({"data": articles[::order]}))
    parts = {"train": "[not c; Fresno,_California]", "dev": "[c]", "test": "[Fresno,_California]"}
    config = TASK.config_class(data=SquadDataConfig(**{name: f"{path}{part}" for name, part in parts.items()}))
    actual = {name: [example.paragraph.title for example in read_part(TASK, config, name)] for name in parts}
    assert actual == {"train": ["Sky_(United_Kingdom)"], "dev": ["c"], "test": ["Fresno,_California"]}
    both = dataclasses.replace(config, data=SquadDataConfig(train=f"{path}[c;Fresno,_California],{path}[:1]"))
    assert len(read_part(TASK, both, "train")) == 3


def test_titles_that_the_file_does_not_have_are_refused(file):
    for part in ("[a;Rhine]", "[not Rhine]"):
        with pytest.raises(UserError, match=r"questions.json: has no article with the title 'Rhine'$"):
            TASK.read(f"{file}{part}", TASK.config_class(), "training")
    with pytest.raises(UserError, match="has no examples of the task squad"):
        read_part(TASK, TASK.config_class(data=SquadDataConfig(dev=f"{file}[]")), "dev")


@pytest.mark.parametrize("name", ["x[1:2]", "x[a;b]", "x[not a]"])
def test_a_file_with_brackets_in_its_name_is_read_whole(tmp_path, name):
    path = tmp_path / name
    assert split_brackets(str(path))[0] == tmp_path / "x"
    path.touch()
    assert split_brackets(str(path)) == (path, slice(None))


def test_moved_and_missing_answers_are_counted_on_stderr(tmp_path, capsys):
    path = tmp_path / "questions.json"
    text = article("a", ("Who?", "Ada"), ("Who else?", "Ada"), ("When?", "1843"), ("Where?", "notes"))
    answers = [qa["answers"][0] for qa in text["paragraphs"][0]["qas"]]
    answers[0]["answer_start"], answers[1]["answer_start"], answers[3]["text"] = 5, 7, "London"
    path.write_text(json.dumps({"data": [text]}))
    actual = TASK.read(str(path), TASK.config_class(data=SquadDataConfig(missing="skip")), "training")
    assert [example.answers for example in actual] == [["Ada"], ["Ada"], ["1843"]]
    assert capsys.readouterr().err.splitlines() == [
        f"elmo-jax: {path}: first answers not at their answer_start; nearest occurrence used: 2",
        f"elmo-jax: {path}: questions left out, since they have no answer, or the first one is not in the paragraph: 1",
    ]


def test_tfds_gives_what_the_file_gives(file):
    records = [
        {
            "id": qa["id"].encode(),
            "title": article["title"].encode(),
            "context": TEXT.encode(),
            "question": qa["question"].encode(),
            "answers": {
                "text": np.array([answer["text"].encode() for answer in qa["answers"]], object),
                "answer_start": np.array([answer["answer_start"] for answer in qa["answers"]], np.int32),
            },
        }
        for article in ARTICLES
        for qa in article["paragraphs"][0]["qas"]
    ]
    assert TASK.from_tfds("tfds:squad", {}, records, TASK.config_class()) == TASK.read(
        file, TASK.config_class(), "training"
    )


def test_what_a_user_sees(file):
    examples = TASK.read(file, TASK.config_class(), "evaluation")
    sides = [np.stack([certain(e.span[side], 12) for e in examples]) for side in (0, 1)]
    actual = TASK.decode({"start": sides[0], "end": sides[1]}, examples, {}, TASK.config_class())
    assert TASK.score(examples, actual) == {"f1": 100.0, "exact_match": 100.0}
    assert json.loads(TASK.write(examples, actual)) == {"a0": "Ada Lovelace", "a1": "1843", "b0": "notes"}
    shown = TASK.show(examples[2], actual[2]).split("\n")
    assert shown == ["What ? notes (100%)", "  Ada Lovelace wrote well-known [notes] in 1843."]
    printed = TASK.as_json(examples[2], actual[2])
    assert TEXT[printed["start"] : printed["end"]] == printed["answer"] == "notes"


def test_words_of_a_user_are_split_as_those_of_the_training_text():
    (example,) = TASK.from_words([["Who", "wrote", "?"], ["well-known", "notes", "."]], {})
    assert example.tokens == ["Who", "wrote", "?"]
    assert example.paragraph.tokens.words == ["well", "-", "known", "notes", "."]
    assert example.paragraph.answer(0, 3) == "well-known notes"
    with pytest.raises(UserError, match="expected a question and a paragraph with words, got an empty one"):
        TASK.from_words([["Who"], []], {})
    for texts in ([["Who"], ["\u3000"]], [["\u3000"], ["notes"]], [["Who"], ["", ""]]):
        with pytest.raises(UserError, match="with words, got an empty one"):
            TASK.from_words(texts, {})


def test_the_question_comes_first_and_padding_has_no_probability():
    question, paragraph = checks.text(0, [2, 3], 3, 4), checks.text(1, [5, 3], 5, 4)
    config = TASK.config_class()
    model = type(TASK.module(config, {}))(type(config.model)(units=3))
    arrays = {"answers": np.array([[0, 1], [2, 2]])}
    variables = jax.jit(model.init)(jax.random.key(0), question, paragraph, arrays)
    actual = jax.jit(model.apply)(variables, question, paragraph, arrays).predictions
    assert_allclose(actual["start"].sum(1), 1, rtol=1e-5)
    assert actual["end"].shape == (2, 5) and not np.asarray(actual["end"])[1, 3:].any()
