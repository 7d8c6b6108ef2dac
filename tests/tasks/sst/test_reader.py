import pytest

from elmo_jax.tasks.core.classification import ClassifiedTexts
from elmo_jax.tasks.formats.sources import read_part
from elmo_jax.tasks.sst.task import LABELS, TASK, SSTDataConfig, read
from tests.tasks.format_cases import message, write

TREES = "(3 (2 It) (4 (4 (2 's) (3 good)) (2 .)))\n\n(1 (2 -LRB-) (1 (0 bad\\/sad) (2 -RRB-)))\n"


def phrases(examples):
    return [(LABELS.index(example.label), " ".join(example.texts[0])) for example in examples]


def test_sentences(tmp_path):
    assert read(write(tmp_path, TREES), "sentences") == [
        ClassifiedTexts((["It", "'s", "good", "."],), LABELS[3]),
        ClassifiedTexts((["(", "bad/sad", ")"],), LABELS[1]),
    ]


def test_all_subtrees(tmp_path):
    assert phrases(read(write(tmp_path, TREES), "all")) == [
        (3, "It 's good ."),
        (2, "It"),
        (4, "'s good ."),
        (4, "'s good"),
        (2, "'s"),
        (3, "good"),
        (2, "."),
        (1, "( bad/sad )"),
        (2, "("),
        (1, "bad/sad )"),
        (0, "bad/sad"),
        (2, ")"),
    ]


def test_short_phrases_are_left_out_with_their_number_but_no_sentences(tmp_path, capsys):
    path = write(tmp_path, TREES + "(3 (2 Dull) (1 .))\n")

    def trained_on(phrases):
        config = TASK.config_class(data=SSTDataConfig(train=str(path), phrases=phrases, shortest=3))
        return [" ".join(example.texts[0]) for example in read_part(TASK, config, "train")]

    assert trained_on("sentences") == ["It 's good .", "( bad/sad )", "Dull ."] and not capsys.readouterr().err
    assert trained_on("all") == ["It 's good .", "'s good .", "( bad/sad )"]
    assert capsys.readouterr().err == f"elmo-jax: {path}: phrases of fewer than 3 words left out: 12\n"


def test_repeated_phrases_are_kept(tmp_path):
    assert phrases(read(write(tmp_path, "(2 (3 so) (3 so))"), "all")) == [(2, "so so"), (3, "so"), (3, "so")]


def test_a_tree_of_one_word_and_trees_of_three_branches(tmp_path):
    path = write(tmp_path, "(2 a)\n(0 (1 a) (2 b) (3 c))\n(4 (3 x))\n")
    assert phrases(read(path, "all")) == [(2, "a"), (0, "a b c"), (1, "a"), (2, "b"), (3, "c"), (4, "x"), (3, "x")]


def test_a_word_may_hold_a_no_break_space(tmp_path):
    assert read(write(tmp_path, "(2 8\u00a01\\/2)"), "all")[0].texts[0] == ["8\u00a01/2"]


def test_a_deep_tree(tmp_path):
    depth = 3000
    actual = read(write(tmp_path, "(2 " * depth + "a" + ")" * depth), "all")
    assert actual == [ClassifiedTexts((["a"],), LABELS[2])] * depth


def test_blanks_between_brackets_are_optional(tmp_path):
    path = write(tmp_path, "(2(3 so)(3\tgood))\n ( 2  ( 3  so ) ( 3 4 ) ) \n")
    so = (3, "so")
    assert phrases(read(path, "all")) == [(2, "so good"), so, (3, "good"), (2, "so 4"), so, (3, "4")]


@pytest.mark.parametrize(
    "line",
    [
        *("good", ")", "(", "(5 good)", "(12 good)", "(good)", "((2 good))", "(2)", "(2 (3))", "(2 so good)"),
        *("(2 so (3 good))", "(2 (3 so) good)", "(2 so))", "(2 so) (3 good)", "(2 (3 so) (2 it)) )", "(2 (3 so)"),
    ],
)
def test_lines_that_are_no_trees(tmp_path, line):
    expected = "line 2: not a tree such as (3 (2 It) …)"
    assert message(read, write(tmp_path, f"(2 a)\n{line}\n"), "all") == expected
