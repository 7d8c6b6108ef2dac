import pytest

from elmo_jax.tasks.srl.task import Argument, arguments, evaluate, proposition_lines
from tests.tasks.format_cases import names, oracle

pytestmark = pytest.mark.quick

SRL_EVAL = pytest.mark.parametrize("case", oracle("srl_eval"), ids=names("srl_eval"))  # outputs of srl-eval.pl
ALLENNLP = {case["name"]: case for case in oracle("allennlp_span_f1")}  # outputs of AllenNLP's SpanBasedF1Measure


def gold_and_predicted(case):
    propositions = [one for sentence in case["propositions"] for one in sentence]
    return [one["gold"] for one in propositions], [one["predicted"] for one in propositions]


def numbers(counts):
    return {
        "correct": counts.correct,
        "excess": counts.predicted - counts.correct,
        "missed": counts.gold - counts.correct,
        "precision": round(counts.precision, 2),
        "recall": round(counts.recall, 2),
        "f1": round(counts.f1, 2),
    }


@SRL_EVAL
def test_counts_and_percentages_of_srl_eval(case):
    scores = evaluate(*gold_and_predicted(case))
    assert numbers(scores.overall) == case["expect"]["overall"]
    assert {label: numbers(counts) for label, counts in scores.labels.items()} == case["expect"]["labels"]
    actual = scores.metrics()
    assert list(actual)[0] == "f1" and round(actual["f1"], 2) == case["expect"]["overall"]["f1"]
    assert {f"f1_{label}" for label in scores.labels} < actual.keys()


@SRL_EVAL
@pytest.mark.parametrize("side", ["gold", "predicted"])
def test_columns_as_given_to_srl_eval(case, side):
    lines = []
    for sentence in case["propositions"]:
        predicates, tags = [one["verb_index"] for one in sentence], [one[side] for one in sentence]
        lines += proposition_lines(["verb"] * len(tags[0]), predicates, tags)
    assert lines == case[f"{side}_columns"]


def test_columns_stand_in_the_order_of_the_predicates():
    lines = proposition_lines(["a", "b"], [1, 0], [["O", "B-V"], ["B-V", "B-ARG1"]])
    assert lines == ["a (V*) *", "b (ARG1*) (V*)", ""]


def test_a_continuation_joins_the_last_argument_of_its_label():
    tags = ["B-ARG1", "B-ARG0", "B-ARG1", "B-C-ARG1", "B-C-ARG0", "B-C-ARG2", "B-C-ARG2", "B-R-ARG1", "B-C-ARG1"]
    assert arguments(tags) == [
        Argument("ARG1", ((0, 0),)),
        Argument("ARG0", ((1, 1), (4, 4))),
        Argument("ARG1", ((2, 2), (3, 3), (8, 8))),
        Argument("ARG2", ((5, 5), (6, 6))),
        Argument("R-ARG1", ((7, 7),)),
    ]


def test_pieces_side_by_side_are_not_one_piece():
    scores = evaluate([["B-ARG1", "B-C-ARG1", "B-V"]], [["B-ARG1", "I-ARG1", "B-V"]])
    assert (scores.overall.correct, scores.overall.predicted, scores.overall.gold) == (0, 1, 1)


def test_a_continuation_of_the_verb_is_not_counted():
    scores = evaluate([["B-V", "O", "B-C-V"]], [["B-V", "O", "O"]])
    assert (scores.overall.predicted, scores.overall.gold) == (0, 0)
    assert (scores.labels["V"].correct, scores.labels["V"].gold) == (0, 1)


@pytest.mark.parametrize("name", ["V ignored", "C- merged by substring", "C- merge swallows R-"])
def test_where_allennlp_has_the_same_overall(name):
    case = ALLENNLP[name]
    scores = evaluate([gold for gold, _ in case["pairs"]], [predicted for _, predicted in case["pairs"]])
    assert scores.overall.f1 == pytest.approx(100 * case["expect"]["f1-measure-overall"], abs=1e-9)
    if name == "C- merge swallows R-":  # AllenNLP's score has no label for it
        assert scores.labels["R-ARG1"].gold == 1 and "f1-measure-R-ARG1" not in case["expect"]


def test_lengths_must_agree():
    with pytest.raises(ValueError):
        evaluate([["O"]], [])
    with pytest.raises(ValueError):
        evaluate([["O", "O"]], [["O"]])
