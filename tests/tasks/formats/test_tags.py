import pytest

from elmo_jax.tasks.formats.tags import (
    Span,
    TagError,
    bioul_to_bio,
    brackets,
    brackets_to_bio,
    spans,
    to_bio,
    to_bioul,
)
from tests.tasks.format_cases import oracle

pytestmark = pytest.mark.quick

CASES = pytest.mark.parametrize("case", oracle("tag_conversion"), ids=lambda case: " ".join(case["tags"]))


def sorted_spans(found):
    return sorted([span.label, [span.start, span.end]] for span in found)


@CASES
def test_to_bioul_as_allennlp(case):
    assert to_bioul(case["tags"]) == case["bioul_from_IOB1"]
    if case["bioul_from_BIO"] == "invalid tag sequence":
        with pytest.raises(TagError, match="opens a span"):
            to_bio(case["tags"], "bio")
    else:
        assert to_bioul(case["tags"]) == case["bioul_from_BIO"]
        assert to_bio(case["tags"], "bio") == case["tags"]


@CASES
def test_spans_as_allennlp(case):
    assert sorted_spans(spans(case["tags"])) == case["spans_bio"] == case["spans_iob1"]
    assert sorted_spans(spans(to_bio(case["bioul_from_IOB1"], "bioul"))) == case["spans_bioul"]


@CASES
def test_brackets_as_given_to_srl_eval(case):
    assert brackets(case["tags"]) == case["brackets"]


@CASES
def test_there_and_back(case):
    bio = to_bio(case["tags"], "iob1")
    assert bioul_to_bio(to_bioul(case["tags"])) == bio
    assert brackets_to_bio(case["brackets"]) == bio
    assert spans(bio) == spans(case["tags"])


def test_types_may_hold_hyphens():
    assert spans(["B-creative-work", "I-creative-work"]) == [Span("creative-work", 0, 1)]
    assert brackets_to_bio(["(C-ARG1*)"]) == ["B-C-ARG1"]


@pytest.mark.parametrize(
    ("tags", "position"),
    [(["O", "B"], 1), (["B-"], 0), (["O", "U-PER"], 1), (["PER"], 0), ([""], 0), (["BI-PER"], 0)],
)
def test_tags_of_another_notation(tags, position):
    for call in (spans, lambda tags: to_bio(tags, "bio"), lambda tags: to_bio(tags, "iob1"), brackets):
        with pytest.raises(TagError, match="expected one of O, B-x, I-x, found") as error:
            call(tags)
        assert error.value.position == position


def test_bio_names_the_inside_tag_that_opens_a_span():
    with pytest.raises(
        TagError, match="'I-LOC' opens a span, where BIO expects 'B-LOC'; is the file in IOB1?"
    ) as error:
        to_bio(["O", "B-PER", "I-LOC"], "bio")
    assert error.value.position == 2


def test_ill_formed_bioul_is_converted_tag_by_tag():
    assert bioul_to_bio(["L-A", "U-B", "I-A", "O", "B-A"]) == ["I-A", "B-B", "I-A", "O", "B-A"]
    with pytest.raises(TagError, match="expected one of O, B-x, I-x, U-x, L-x, found 'E-A'"):
        to_bio(["E-A"], "bioul")


@pytest.mark.parametrize(
    ("tags", "position"),
    [
        (["I-A"], 0),
        (["O", "L-A"], 1),
        (["B-A", "O"], 1),
        (["B-A", "U-A"], 1),
        (["B-A", "B-A", "L-A"], 1),
        (["B-A", "L-B"], 1),
        (["U-A", "L-A"], 1),
        (["B-A", "L-A", "I-A", "L-A"], 2),
        (["B-A", "I-A"], 1),
    ],
)
def test_ill_formed_bioul_is_refused(tags, position):
    with pytest.raises(TagError) as error:
        to_bio(tags, "bioul")
    assert error.value.position == position


@pytest.mark.parametrize(
    ("cells", "position", "reason"),
    [
        (["*", "(A"], 1, r"expected \*, \(x\*, \*\) or \(x\*\)"),
        (["(A*", "(B*)", "*)"], 1, "opens a span inside"),
        (["(A(B*))"], 0, "expected"),
        (["*", "*)"], 1, "closes a span that was not opened"),
        (["(A*", "*"], 1, "ends inside a span of type 'A'"),
    ],
)
def test_brackets_without_a_partner(cells, position, reason):
    with pytest.raises(TagError, match=reason) as error:
        brackets_to_bio(cells)
    assert error.value.position == position
