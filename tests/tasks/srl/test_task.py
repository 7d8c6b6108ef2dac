"""Tests the task of semantic roles beyond its reader, model and metric."""

from elmo_jax.tasks.srl.reader import Example
from elmo_jax.tasks.srl.task import TASK

CAT = "The cat chased the mouse .".split()
CHASED = ["B-ARG0", "I-ARG0", "B-V", "B-ARG1", "I-ARG1", "O"]
TRAIN = [
    Example(CAT, CHASED, 0, 2, (2,)),
    Example("Dogs like to chase cats like this".split(), ["B-ARG0", "B-V", *["O"] * 5], 1, 1, (1, 3)),
    Example("Dogs like to chase cats like this".split(), ["O", "O", "O", "B-V", "B-ARG1", "O", "O"], 1, 3, (1, 3)),
    Example("It looks like rain , like snow".split(), ["B-ARG1", "B-V", *["O"] * 5], 2, 1, (1,)),
]


def test_words_are_predicates_that_were_so_in_half_of_their_uses():
    labels = TASK.labels(TRAIN, TASK.config_class())
    sentence = "Cats , frobnicated by the mouse , frobnicated ; 2".split()
    assert TASK.overlooked([sentence, ["purr"]], labels) == ["frobnicated", "by", "purr"]
    assert {key: labels[key] for key in ("tags", "predicates")} == {
        "tags": ["B-ARG0", "B-ARG1", "B-V", "I-ARG0", "I-ARG1", "O"],
        "predicates": ["chase", "chased", "looks"],  # "like" is a predicate in only one of four occurrences
    }
    actual = TASK.from_words(["Chase whoever chased it".split()], labels)
    assert [(example.predicate, example.tags) for example in actual] == [(0, []), (2, [])]
    assert TASK.from_words([["Hello"]], labels) == []


def test_a_share_of_the_predicates_knows_the_others_of_its_sentences():
    assert TASK.labels(TRAIN[:2], TASK.config_class())["predicates"] == ["chase", "chased", "like"]
    assert TASK.labels(TRAIN[2:3], TASK.config_class())["predicates"] == ["chase", "like"]


def test_what_a_user_sees():
    assert TASK.show(TRAIN[0], CHASED) == "chased: [ARG0 The cat] [V chased] [ARG1 the mouse] ."
    actual = TASK.as_json(TRAIN[0], CHASED)
    assert (actual["predicate"], actual["tags"]) == (2, CHASED)
    assert actual["arguments"][2] == {"role": "ARG1", "text": "the mouse", "start": 3, "end": 5}


def test_the_predicates_of_a_sentence_are_written_side_by_side():
    written = TASK.write(TRAIN, [example.tags for example in TRAIN])
    blocks = written.split("\n\n")
    assert blocks[0] == "- (ARG0*\n- *)\nchased (V*)\n- (ARG1*\n- *)\n- *"
    assert blocks[1].split("\n")[:2] == ["- (ARG0*) *", "like (V*) *"]
    assert len(blocks) == 4 and blocks[3] == ""


def test_two_frames_of_one_position_are_written_as_two_sentences():
    twice = [TRAIN[0], TRAIN[0]]
    assert TASK.write(twice, [CHASED, CHASED]).count("chased (V*)") == 2


def test_no_frames_are_an_empty_file() -> None:
    assert TASK.write([], []) == ""
