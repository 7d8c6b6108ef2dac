import pytest

from elmo_jax.errors import UserError
from elmo_jax.tasks.core.tagging import TaggedSentence
from elmo_jax.tasks.ner.reader import read
from tests.tasks.format_cases import message, write

CONLL2003 = """\
-DOCSTART- -X- -X- O

Rome NNP I-NP I-LOC
Rome NNP B-NP B-LOC
, , O O
New NNP I-NP I-PER
York NNP I-NP I-PER
won VBD I-VP O

-DOCSTART- -X- -X- O
He PRP I-NP O

"""


def test_conll2003_in_iob1(tmp_path):
    assert read(write(tmp_path, CONLL2003), "iob1") == [
        TaggedSentence(["Rome", "Rome", ",", "New", "York", "won"], ["B-LOC", "B-LOC", "O", "B-PER", "I-PER", "O"]),
        TaggedSentence(["He"], ["O"]),
    ]


def test_a_document_line_ends_a_sentence(tmp_path):
    path = write(tmp_path, "a O\n-DOCSTART- O\nb O\n")
    assert [example.tokens for example in read(path, "iob1")] == [["a"], ["b"]]


def test_two_columns_in_bio(tmp_path):
    path = write(tmp_path, "Empire\tB-location\nState\tI-location\n\t\nso\tO\n '\tO\n")  # WNUT-17 has lines of a tab
    assert read(path, "bio") == [
        TaggedSentence(["Empire", "State"], ["B-location", "I-location"]),
        TaggedSentence(["so", " '"], ["O", "O"]),
    ]


@pytest.mark.parametrize("tag", ["I-LOC", "I-PER"])
def test_bio_refuses_an_inside_tag_that_opens_a_span(tmp_path, tag):
    path = write(tmp_path, f"a\tO\n\nb\tB-ORG\nc\t{tag}\n")
    expected = f"line 4: {tag!r} opens a span, where BIO expects 'B-{tag[2:]}'; is the file in IOB1?"
    assert message(read, path, "bio") == expected
    assert read(path, "iob1")[1].tags == ["B-ORG", f"B-{tag[2:]}"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("b", "line 3: expected 2 columns, as in the lines before, found 'b'"),
        ("b\tc\tO", "line 3: expected 2 columns, as in the lines before, found 'b\\tc\\tO'"),
        (
            "\tO",
            "line 3: the word is empty; remove the line, or leave such lines out with config.data.empty_words=skip",
        ),
        ("b\tX-PER", "line 3: expected one of O, B-x, I-x, found 'X-PER'"),
        ("b\tE-PER", "line 3: expected one of O, B-x, I-x, found 'E-PER'; set config.data.scheme=bioes"),
        ("b\tU-PER", "line 3: expected one of O, B-x, I-x, found 'U-PER'; set config.data.scheme=bioul"),
        ("b\t", "line 3: expected one of O, B-x, I-x, found ''"),
    ],
)
def test_lines_that_are_no_words(tmp_path, line, expected):
    for scheme in ("bio", "iob1"):
        assert message(read, write(tmp_path, f"a\tO\n\n{line}\n"), scheme) == expected


@pytest.mark.parametrize(("scheme", "single", "last"), [("bioul", "U", "L"), ("bioes", "S", "E")])
def test_tags_of_single_and_last_words(tmp_path, scheme, single, last):
    path = write(tmp_path, f"a\tB-PER\nb\tI-PER\nc\t{last}-PER\nd\tO\ne\t{single}-LOC\n")
    assert read(path, scheme) == [TaggedSentence(list("abcde"), ["B-PER", "I-PER", "I-PER", "O", "B-LOC"])]
    path = write(tmp_path, f"a\tB-PER\nb\t{single}-PER\n")
    assert message(read, path, scheme) == f"line 2: '{single}-PER' cannot follow 'B-PER'"


@pytest.mark.parametrize(
    ("text", "line", "comment"),
    [
        ("# id 12-34\tdomain=en\nrobert _ _ B-PER\n", 1, "# id 12-34\tdomain=en"),
        ("#\thttp://x [date]\nrobert\tB-PER\n", 1, "#\thttp://x [date]"),
        ("robert\tB-PER\n\n# id 2\nrobert\tB-PER\n", 3, "# id 2"),
        ("#\tO\n", 0, ""),
    ],
)
def test_a_comment_is_named_by_its_line(tmp_path, text, line, comment):
    path = write(tmp_path, text)
    if line:
        assert message(read, path, "bio") == f"line {line}: a comment, {comment!r}; remove such lines"
    else:  # a word of the text
        assert read(path, "bio")[0].tokens == ["#"]


def test_a_file_of_words_only(tmp_path):
    assert message(read, write(tmp_path, "a\nb\n"), "bio") == "line 1: expected a word and its tag, found 'a'"


def test_a_span_begins_at_the_first_word_that_is_not_empty(tmp_path):
    path = write(tmp_path, "a\tB-X\n\tB-X\nb\tI-X\nc\tI-X\n\tB-Y\nd\tO\n")
    (example,) = read(path, "bio", "skip")
    assert example.tokens == ["a", "b", "c", "d"] and example.tags == ["B-X", "B-X", "I-X", "O"]


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("I-PER I-PER O I-LOC B-LOC", "iob1"),
        ("B-PER I-PER O B-LOC B-LOC", "bio"),
        ("B-PER L-PER O U-LOC", "bioul"),
        ("B-PER E-PER O S-LOC", "bioes"),
        ("U-LOC O", "bioul"),
        ("S-LOC O", "bioes"),
        ("O O", "bio"),
    ],
)
def test_the_tags_of_a_file_decide(tmp_path, capsys, tags, scheme):
    words = "".join(f"w\t{tag}\n" for tag in tags.split())
    path = write(tmp_path, f"{words}\nw\tO\n")
    assert read(path, "auto") == read(path, scheme)
    assert capsys.readouterr().err == f"elmo-jax: {path}: tags read as {scheme} (config.data.scheme to change)\n"


def test_tags_of_two_notations_are_refused(tmp_path):
    path = write(tmp_path, "a\tI-PER\n\nb\tB-LOC\nc\tI-LOC\n")
    expected = "spans open with I (I-PER), as in IOB1, and others with B (B-LOC), as in BIO; set config.data.scheme"
    with pytest.raises(UserError) as refused:
        read(path, "auto")
    assert str(refused.value) == f"{path}: {expected}"
    assert [example.tags for example in read(path, "iob1")] == [["B-PER"], ["B-LOC", "I-LOC"]]


def test_numbers_of_words_are_not_read_as_words(tmp_path):
    path = write(tmp_path, "1\tAda\tO\tB-PER\n2\twent\tO\tO\n\n1\tParis\tB-DERIV\tB-LOC\n")
    with pytest.raises(UserError, match="has the numbers of the words, .*; set config.data.word_column=2"):
        read(path, "bio")
    actual = read(path, "bio", word=2, tag=4)
    assert actual == [TaggedSentence(["Ada", "went"], ["B-PER", "O"]), TaggedSentence(["Paris"], ["B-LOC"])]
    assert [example.tags for example in read(path, "bio", word=2, tag=3)] == [["O", "O"], ["B-DERIV"]]
    assert message(read, path, "bio", word=5).startswith("line 1: expected 5 columns (config.data.word_column")
    through = write(tmp_path, "7\tAda\tB-PER\n8\twent\tO\n\n9\tParis\tB-LOC\n")  # numbered over the document
    with pytest.raises(UserError, match="the first column has the numbers of the words"):
        read(through, "bio")
    years = write(tmp_path, "1843\tO\n\n1844\tO\n", "years.txt")  # sentences of one word say nothing
    assert [example.tokens for example in read(years, "bio")] == [["1843"], ["1844"]]


def test_names_of_sentences_are_not_read_as_words(tmp_path):
    path = write(tmp_path, "s1\tAda\tB-PER\ns1\twent\tO\n\ns2\tParis\tB-LOC\n")
    with pytest.raises(UserError, match="the names of the sentences; set config.data.word_column=2"):
        read(path, "bio")
    assert read(path, "bio", word=2)[0].tokens == ["Ada", "went"]
    assert read(write(tmp_path, "no O\nno O\n", "no.txt"), "bio")[0].tokens == ["no", "no"]


def test_inner_tags_are_not_read_as_tags(tmp_path):
    path = write(tmp_path, "Bank\tB-ORG\tO\nof\tI-ORG\tO\nRome\tI-ORG\tB-LOC\n\nPisa\tB-LOC\tO\n")
    with pytest.raises(UserError, match="the last two columns have tags, the first of them B-LOC; set config"):
        read(path, "bio")
    for inner in ("B-PART", "O"):  # another type, or no inner entity in the file
        with pytest.raises(UserError, match="the last two columns have tags"):
            read(write(tmp_path, f"Rome\tB-LOC\t{inner}\nis\tO\tO\n", "inner.txt"), "bio")
    chunks = write(tmp_path, "Rome NNP B-NP B-LOC\nis VBZ B-VP O\n", "chunks.txt")
    assert read(chunks, "bio")[0].tags == ["B-LOC", "O"]
    assert read(path, "bio", tag=2)[0].tags == ["B-ORG", "I-ORG", "I-ORG"]
    assert read(path, "bio", tag=3)[0].tags == ["O", "O", "B-LOC"]


def test_spaces_around_a_tag_are_no_part_of_it(tmp_path):
    assert read(write(tmp_path, "Rome\tB-LOC \nis\t O\n"), "bio")[0].tags == ["B-LOC", "O"]


def test_a_bad_tag_of_a_hashtag_is_not_called_a_comment(tmp_path):
    path = tmp_path / "tweets.txt"
    path.write_text("go\tO\n#NBA\tI-ORG\n")
    for scheme in ("bio", "bioes"):
        assert "comment" not in message(read, path, scheme)


def test_words_alone_are_read_for_predictions(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("Ann\nruns\n\nYes\n")
    assert [(e.tokens, e.tags) for e in read(path, "auto", annotated=False)] == [(["Ann", "runs"], []), (["Yes"], [])]
    assert "expected a word and its tag" in message(read, path, "auto")
