import lzma

import pytest

from elmo_jax.tasks.core.tagging import TaggedSentence
from elmo_jax.tasks.pos.task import read_conllu, read_penn
from tests.tasks.format_cases import message, write

pytestmark = pytest.mark.quick

CONLLU = """\
# newdoc id = a
# sent_id = a-1
1	We	we	PRON	PRP	_	2	nsubj	_	_
2-3	don't	_	_	_	_	_	_	_	_
2	do	do	AUX	VBP	_	4	aux	_	_
3	n't	not	PART	RB	_	4	advmod	_	_
4	go	go	VERB	VB	_	0	root	_	SpaceAfter=No
4.1	home	home	NOUN	NN	_	_	_	4:obl	_
5	.	.	PUNCT	.	_	4	punct	_	_

# sent_id = a-2
1	#	#	SYM	NN	_	0	root	_	_
2	a b	a b	X	FW	_	1	dep	_	_
"""


def test_conllu_has_syntactic_words_without_empty_nodes(tmp_path):
    path = write(tmp_path, CONLLU)
    words = [["We", "do", "n't", "go", "."], ["#", "a b"]]
    assert read_conllu(path, "upos") == [
        TaggedSentence(words[0], ["PRON", "AUX", "PART", "VERB", "PUNCT"]),
        TaggedSentence(words[1], ["SYM", "X"]),
    ]
    assert read_conllu(path, "xpos") == [
        TaggedSentence(words[0], ["PRP", "VBP", "RB", "VB", "."]),
        TaggedSentence(words[1], ["NN", "FW"]),
    ]


def test_conllu_compressed_with_windows_lines(tmp_path):
    path = write(tmp_path, lzma.compress(b"\xef\xbb\xbf" + CONLLU.replace("\n", "\r\n").encode()), "a.conllu.xz")
    assert read_conllu(path, "upos") == read_conllu(write(tmp_path, CONLLU), "upos")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1\tWe\twe\tPRON", "line 3: expected 10 columns separated by tabs, found 4"),
        ("# late", "line 4: expected 10 columns separated by tabs, found 1"),
        ("2\tdo\tdo\tAUX\tVBP\t_\t4\taux\t_\t_", "line 3: expected word 1 of the sentence, found '2'"),
        ("x\tdo\tdo\tAUX\tVBP\t_\t4\taux\t_\t_", "line 3: expected word 1 of the sentence, found 'x'"),
        ("1\t\tdo\tAUX\tVBP\t_\t4\taux\t_\t_", "line 3: the column of the word is empty"),
        ("1\tdo\tdo\t_\tVBP\t_\t4\taux\t_\t_", "line 3: the word 'do' has no tag in the column of UPOS"),
    ],
)
def test_what_conllu_is_not(tmp_path, line, expected):
    first = "1\ta\ta\tDET\tDT\t_\t0\troot\t_\t_\n" if line == "# late" else ""
    assert message(read_conllu, write(tmp_path, f"# a\n# b\n{first}{line}\n"), "upos") == expected


def test_conllu_without_the_tags_of_the_treebank(tmp_path):
    path = write(tmp_path, "1\tdo\tdo\tAUX\t_\t_\t4\taux\t_\t_\n")
    assert message(read_conllu, path, "xpos") == "line 1: the word 'do' has no tag in the column of XPOS"


PENN = """\

======================================

[ ``/`` A/DT 1\\/2/CD share/NN ]
,/, sold/VBD|VBN
[ the/DT \\*/SYM man/NN ]

of/IN
[ it/PRP ]
./.

''/'' )/)
[ He/PRP ]
ran/VBD ./.

======================================
Next/JJ story/NN
======================================

"""


def test_penn_sentences(tmp_path):
    actual = read_penn(write(tmp_path, PENN))
    assert [" ".join(example.tokens) for example in actual] == [
        "`` A 1/2 share , sold the * man of it . '' ) He ran .",
        "Next story",
    ]
    assert actual[0].tags == "`` DT CD NN , VBD DT SYM NN IN PRP . '' ) PRP VBD .".split()
    assert actual[1].tags == ["JJ", "NN"]


def test_penn_blank_lines_divide_sentences(tmp_path):
    actual = read_penn(write(tmp_path, "[ It/PRP ]\nrained/VBD ./. \n\n[ He/PRP ]\n\nslept/VBD ./.\n\n\nThen/RB\n"))
    assert [" ".join(example.tokens) for example in actual] == ["It rained .", "He slept .", "Then"]


@pytest.mark.parametrize("item", ["word", "/NN", "word/", "1\\/2", "/"])
def test_penn_words_without_a_tag(tmp_path, item):
    assert message(read_penn, write(tmp_path, f"It/PRP\n{item} ./.\n")) == f"line 2: expected word/TAG, found {item!r}"
