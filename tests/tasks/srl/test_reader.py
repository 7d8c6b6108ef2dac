import pytest

from elmo_jax.tasks.srl.reader import Example, read_bio, read_columns
from tests.tasks.format_cases import message, write

# document, part, number, word, tag, parse, lemma, frameset, sense, speaker, entity, two predicates, coreference
CONLL2012 = """\
#begin document (bc/a); part 000
bc/a 0 0  What   WP  *  -   -  - A *  (ARG1*)  (R-ARG0*)  -
bc/a 0 1  he     PRP *  -   -  - A *  (ARG0*)  *          (1)
bc/a 0 2  said   VBD *  say 01 - A *  (V*)     (ARG1*     -
bc/a 0 3  to     TO  *  -   -  - A *  *        *          -
bc/a 0 4  take   VB  *  take 01 - A * (C-ARG1* *)         -
bc/a 0 5  over   RP  *  -   -  - A *  *)       (V*        -
bc/a 0 6  .      .   *  -   -  - A *  *        *)         -

bc/a 0 0  Yes    UH  *  yes 01 - A *  -

bc/a 0 0  It     PRP *  -   -  - A *  (ARG0*)  -
#end document
"""


def test_conll2012(tmp_path, capsys):
    actual = read_columns(write(tmp_path, CONLL2012), "conll2012")
    words = ["What", "he", "said", "to", "take", "over", "."]
    assert actual == [
        Example(words, ["B-ARG1", "B-ARG0", "B-V", "O", "B-C-ARG1", "I-C-ARG1", "O"], 0, 2),
        Example(words, ["B-R-ARG0", "O", "B-ARG1", "I-ARG1", "I-ARG1", "B-V", "I-V"], 0, 5),
    ]
    printed = capsys.readouterr().err.splitlines()
    assert (
        [line.rsplit(": ", 1)[1] for line in printed] == ["2", "1"]
        and "sentences" in printed[0]
        and "columns" in printed[1]
    )


def test_propbank_columns(tmp_path):
    path = write(
        tmp_path,
        "\n".join(
            f"d\t0\t{i}\t{word}\tX\t*\t-\t-\t{cell}"
            for i, (word, cell) in enumerate([("He", "(ARG0*)"), ("ran", "(V*)"), ("\u00a0", "*")])
        ),
    )
    assert read_columns(path, "propbank") == [Example(["He", "ran", "\u00a0"], ["B-ARG0", "B-V", "O"], 0, 1)]


def line(cell, more=""):
    return f"d 0 0 word X * - - {cell}{more}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("d 0 0 word X * -\n", "line 1: expected at least 8 columns, found 7"),
        (line("*") + line("*", " *"), "line 2: expected 9 columns, as in the first line of the sentence, found 10"),
        (line("*") + line("*)"), "line 2: column 9: '*)' closes a span that was not opened"),
        (line("(A*") + line("(B*)"), "line 2: column 9: '(B*)' opens a span inside a span of type 'A'"),
        (line("(A*") + line("*") + "\n" + line("*)"), "line 2: column 9: the sentence ends inside a span of type 'A'"),
        (line("V"), "line 1: column 9: expected *, (x*, *) or (x*), found 'V'"),
    ],
)
def test_columns_that_are_none(tmp_path, text, expected):
    assert message(read_columns, write(tmp_path, text), "propbank") == expected


def test_the_layouts_are_not_confused(tmp_path):
    expected = "line 2: column 9: expected *, (x*, *) or (x*), found '-'"
    assert message(read_columns, write(tmp_path, CONLL2012), "propbank") == expected


BIO = """\
1\tHe ran home ||| B-ARG0 B-V B-ARG4
2\tHe ran home ||| O O B-V
2\tHe ran home ||| O O B-V

0\tGo on ! ||| B-V I-V O
"""


def test_lines_of_bio(tmp_path, capsys):
    actual = read_bio(write(tmp_path, BIO))
    assert actual == [
        Example(["He", "ran", "home"], ["B-ARG0", "B-V", "B-ARG4"], 0, 1),
        Example(["He", "ran", "home"], ["O", "O", "B-V"], 0, 2),
        Example(["He", "ran", "home"], ["O", "O", "B-V"], 1, 2),
        Example(["Go", "on", "!"], ["B-V", "I-V", "O"], 2, 0),
    ]
    assert [example.predicates for example in actual] == [(1, 2), (1, 2), (2,), (0,)]
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He ran ||| O B-V", "expected a position, words, ||| and tags, found 'He ran ||| O B-V'"),
        ("1 He ran O B-V", "expected a position, words, ||| and tags, found '1 He ran O B-V'"),
        ("0 ||| O", "expected a position, words, ||| and tags, found '0 ||| O'"),
        ("1 He ran ||| B-V", "2 words have 1 tags"),
        ("0 He ran ||| O B-V", "expected the tag 'B-V' at position 0, found 'O'"),
        ("2 He ran ||| O B-V", "expected the tag 'B-V' at position 2, found only 2 words"),
        ("1 He ran ||| I-ARG0 B-V", "tag 0: 'I-ARG0' opens a span, where BIO expects 'B-ARG0'; is the file in IOB1?"),
    ],
)
def test_lines_that_are_not_bio(tmp_path, text, expected):
    assert message(read_bio, write(tmp_path, BIO + text)) == f"line 6: {expected}"


def test_an_empty_file(tmp_path):
    assert read_bio(write(tmp_path, "")) == read_columns(write(tmp_path, ""), "propbank") == []
