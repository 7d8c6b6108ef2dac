"""Tests the readers of WordNet's index, SemCor and the all-words framework, and the first-sense baseline."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from elmo_jax import UserError
from senses import Instance, SenseIndex, Sentence, lemma_and_part, read_index, read_senses
from tests.analysis.texts import DATA_XML, GOLD, INDEX, TAGFILE_A, write_framework, write_semcor
from wsd import first_senses, right


@pytest.fixture
def index(tmp_path: Path) -> SenseIndex:
    path = tmp_path / "index.sense.xz"
    path.write_bytes(lzma.compress(INDEX.encode()))
    return read_index(path)


def test_senses_of_a_lemma_stand_in_the_order_of_their_numbers(index: SenseIndex) -> None:
    assert len(index) == 9 and "fish%2:35:01::" in index and "fish%2:35:09::" not in index
    assert index.senses("bank", "NOUN") == ["bank%1:17:01::", "bank%1:14:00::"]
    assert index.senses("bank", "VERB") == ["bank%2:40:00::"]
    assert index.senses("bank", "ADV") == [] and index.first("bank", "ADV") is None
    # satellites are adjectives
    assert index.senses("green", "ADJ") == ["green%3:00:01::", "green%5:00:00:unripe:00"]
    assert index.first("green", "ADJ") == "green%3:00:01::"


def test_a_key_has_a_lemma_and_a_part_of_speech() -> None:
    assert lemma_and_part("green%5:00:00:unripe:00") == ("green", "ADJ")
    assert lemma_and_part("%%1:10:00::") == ("%", "NOUN")
    with pytest.raises(UserError, match=r"expected a sense key such as play%1:04:00::, found 'bank'"):
        lemma_and_part("bank")


@pytest.mark.parametrize(
    "line",
    ["bank%1:14:01:: 08420278 2", "bank%1:14:01:: 08420278 x 20", "bank 08420278 2 20", "bank%1:14:00:: 08420278 2 20"],
)
def test_a_line_that_is_no_sense_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "index.sense"
    path.write_text(INDEX + line + "\n")
    with pytest.raises(UserError) as error:
        read_index(path)
    expected = "expected another sense key, an offset, the sense's number and a count"
    assert str(error.value) == f"{path}, line 10: {expected}, found {line!r}"


def test_the_original_files(tmp_path: Path, index: SenseIndex) -> None:
    corpus = read_senses(write_semcor(tmp_path / "semcor3.0"), index)
    assert corpus.sentences == [
        Sentence(
            ("The", "Old", "River", "Bank", "&", "fished", "to", "65", "."),
            (
                Instance(1, 4, "group", "NOUN", ("group%1:03:00::",)),
                Instance(5, 6, "fish", "VERB", ("fish%2:35:01::",)),
            ),
        ),
        Sentence(
            ("bank", "green", "such"),
            (
                Instance(0, 1, "bank", "NOUN", ("bank%1:17:01::",)),
                Instance(1, 2, "green", "ADJ", ("green%5:00:00:unripe:00",)),
            ),
        ),
        Sentence(
            ("fish", "bank"),
            (
                Instance(0, 1, "fish", "VERB", ("fish%2:35:01::",)),
                Instance(1, 2, "bank", "NOUN", ("bank%1:14:00::",)),
            ),
        ),
    ]
    assert (corpus.instances, corpus.keys, corpus.dropped) == (6, 8, 2)
    assert sum(len(sentence.words) for sentence in corpus.sentences) == 14
    every = read_senses(tmp_path / "semcor3.0")
    assert (every.instances, every.dropped) == (7, 0)
    assert every.sentences[0].instances[1].keys == ("fish%2:35:01::", "fish%2:35:09::")


EXPECTED = "expected a sense key such as play%1:04:00::"


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("<punc>.</punc>", "<punc>.", 11, "expected a line of SemCor, such as <wf cmd=…>word</wf>, found '<punc>.'"),
        ("<punc>.</punc>", "word", 11, "expected a line of SemCor, such as <wf cmd=…>word</wf>, found 'word'"),
        ("lemma=fish ", "", 8, "no sense key: 'lemma'"),
        (
            "lexsn=1:17:01::",
            "lexsn=17",
            16,
            f"no sense key: {EXPECTED}, found 'bank%17'",
        ),
    ],
    ids=["cut", "stranger", "lemma", "key"],
)
def test_a_line_that_is_not_semcor_is_named(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    folder = write_semcor(tmp_path / "semcor")
    path = folder / "brown1" / "tagfiles" / "br-a01"
    assert old in TAGFILE_A
    path.write_text(TAGFILE_A.replace(old, new))
    with pytest.raises(UserError) as error:
        read_senses(folder)
    assert str(error.value) == f"{path}, line {line}: {message}"


def test_a_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    folder = write_semcor(tmp_path / "semcor")
    path = folder / "brown1" / "tagfiles" / "br-a01"
    path.write_text(TAGFILE_A.split("<punc>")[0])
    with pytest.raises(UserError, match="the file ends inside a sentence"):
        read_senses(folder)


def test_a_folder_without_semcor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected the folders brown1, brown2 and brownv"):
        read_senses(tmp_path)


def test_the_framework(tmp_path: Path, index: SenseIndex) -> None:
    path = write_framework(tmp_path / "tiny", "tiny")
    corpus = read_senses(path)
    assert corpus.sentences == [
        Sentence(
            ("The", "fruit", "flies", "'s", "bank"),
            (
                Instance(1, 3, "fruit_fly", "NOUN", ("fruit_fly%1:05:00::",)),
                Instance(4, 5, "bank", "NOUN", ("bank%1:14:00::", "bank%1:17:01::")),
            ),
        ),
        Sentence(("green",), (Instance(0, 1, "green", "ADJ", ("green%3:00:09::",)),)),
    ]
    for source in (path, path.parent):  # of a training corpus, unknown keys are dropped
        known = read_senses(source, index)
        assert (known.instances, known.keys, known.dropped) == (2, 4, 1)


def test_the_first_sense_baseline(tmp_path: Path, index: SenseIndex) -> None:
    corpus = read_senses(write_framework(tmp_path, "tiny"))
    actual = first_senses(index, corpus.sentences)
    assert actual == ["fruit_fly%1:05:00::", "bank%1:17:01::", "green%3:00:01::"]
    assert right(actual, corpus.sentences).tolist() == [True, True, False]
    nothing = SenseIndex({"bank%2:40:00::": 1})
    assert first_senses(nothing, corpus.sentences) == [None, None, None]
    assert right([None, None, None], corpus.sentences).tolist() == [False, False, False]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (">bank<", ">&b;<", "not XML (undefined entity"),
        ("</sentence>\n</text>", "</text>", "not XML (mismatched tag: line 14"),
        (">bank<", ">  <", "expected a word, <wf …>word</wf> or <instance"),
        ('lemma="bank" ', "", "expected a word, <wf"),
        ('lemma="bank" pos="NOUN"', 'lemma="bank" pos="NN"', "expected a word, <wf"),
        ("d000.s000.t001", "d000.s000.t009", "expected a word, <wf"),
        ("d000.s000.t001", "d000.s000.t000", "expected a word, <wf"),
        ('<wf lemma="the" pos="DET">The</wf>', "<word>The</word>", "found <word>The</word>"),
        (">bank<", "><wf>bank</wf><", "expected a word, <wf"),
    ],
    ids=["entity", "tags", "no word", "lemma", "pos", "no keys", "twice", "stranger", "nested"],
)
def test_what_is_not_the_frameworks_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in DATA_XML
    path = write_framework(tmp_path, "tiny", DATA_XML.replace(old, new))
    with pytest.raises(UserError) as error:
        read_senses(path)
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("gold", "message"),
    [
        (GOLD + "d000.s002.t001\n", "line 4: expected another instance and its sense keys, found 'd000.s002.t001'"),
        (GOLD + "d000.s002.t001 bank\n", "line 4: expected another instance and its sense keys"),
        (GOLD + "d000.s002.t000 bank%1:14:00::\n", "line 4: expected another instance and its sense keys"),
        (GOLD + "d000.s002.t001 bank%1:14:00::\n", "has keys of 'd000.s002.t001', which is not an instance of"),
    ],
    ids=["no keys", "no key", "twice", "stranger"],
)
def test_gold_keys_that_do_not_belong_are_named(tmp_path: Path, gold: str, message: str) -> None:
    path = write_framework(tmp_path, "tiny", gold=gold)
    with pytest.raises(UserError) as error:
        read_senses(path)
    assert str(error.value).startswith(str(tmp_path / "tiny.gold.key.txt")) and message in str(error.value)


def test_a_file_of_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected a file NAME\.data\.xml"):
        read_senses(tmp_path / "semcor.xml")
