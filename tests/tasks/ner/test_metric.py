import pytest

from elmo_jax.tasks.core.tagging import TaggedSentence
from elmo_jax.tasks.formats.scores import score_spans
from elmo_jax.tasks.formats.tags import TagError, bioul_to_bio, to_bioul
from elmo_jax.tasks.ner.task import TASK
from tests.tasks.format_cases import names, oracle

pytestmark = pytest.mark.quick

# Outputs of conlleval (2004).
CONLLEVAL = pytest.mark.parametrize("case", oracle("conlleval"), ids=names("conlleval"))
# Outputs of AllenNLP's SpanBasedF1Measure, which adds 1e-13 to denominators; those about C-x and V are in srl.
SPAN_F1 = [case for case in oracle("allennlp_span_f1") if case["name"].startswith(("random", "BIOUL"))]


def metric(gold, predicted):
    return TASK.score([TaggedSentence(["word"] * len(tags), tags) for tags in gold], predicted)


def gold_and_predicted(case):
    return [gold for gold, _ in case["pairs"]], [predicted for _, predicted in case["pairs"]]


@CONLLEVAL
def test_report_is_what_conlleval_prints(case):
    gold, predicted = gold_and_predicted(case)
    scores, words = score_spans(gold, predicted), sum(map(len, gold))
    overall, accuracy = scores.overall, metric(gold, predicted)["accuracy"]
    assert case["expect"]["lines"] == [
        f"processed {words} tokens with {overall.gold} phrases; "
        f"found: {overall.predicted} phrases; correct: {overall.correct}.",
        f"accuracy: {accuracy:6.2f}%; {printed(overall)}",
        *(f"{label:>17}: {printed(counts)}  {counts.predicted}" for label, counts in scores.labels.items()),
    ]


def printed(counts):
    return f"precision: {counts.precision:6.2f}%; recall: {counts.recall:6.2f}%; FB1: {counts.f1:6.2f}"


@CONLLEVAL
def test_counts_and_percentages_of_conlleval(case):
    expect = case["expect"]
    scores = score_spans(*gold_and_predicted(case))
    counted = (scores.overall.gold, scores.overall.predicted, scores.overall.correct)
    assert counted == (expect["gold"], expect["predicted"], expect["correct"])
    actual = metric(*gold_and_predicted(case))
    assert list(actual)[0] == "f1"
    for name in ("accuracy", "precision", "recall", "f1"):
        assert round(actual[name], 2) == expect[name]
    assert list(scores.labels) == list(expect["types"])
    for label, of_type in expect["types"].items():
        counts = scores.labels[label]
        assert round(actual[f"f1_{label}"], 2) == of_type["f1"]
        assert (round(counts.precision, 2), round(counts.recall, 2)) == (of_type["precision"], of_type["recall"])
        assert counts.predicted == of_type["predicted"]


@CONLLEVAL
def test_bioul_scores_as_the_tags_it_was_made_of(case):
    gold, predicted = ([to_bioul(tags) for tags in side] for side in gold_and_predicted(case))
    actual = score_spans([bioul_to_bio(tags) for tags in gold], [bioul_to_bio(tags) for tags in predicted])
    assert actual.labels == score_spans(*gold_and_predicted(case)).labels


@pytest.mark.parametrize("case", SPAN_F1, ids=lambda case: case["name"])
def test_span_f1_of_allennlp(case):
    gold, predicted = gold_and_predicted(case)
    if case["expect"] == "invalid tag sequence":
        with pytest.raises(TagError):
            score_spans(gold, predicted)  # BIOUL is to be converted first
        return
    if case["encoding"] == "BIOUL":
        gold, predicted = ([bioul_to_bio(tags) for tags in side] for side in (gold, predicted))
    scores = score_spans(gold, predicted)
    for name, value in case["expect"].items():
        kind, _, label = name.rpartition("-")
        counts = scores.overall if label == "overall" else scores.labels[label]
        assert getattr(counts, kind.split("-")[0]) == pytest.approx(100 * value, abs=1e-9)


def test_lengths_must_agree():
    with pytest.raises(ValueError):
        score_spans([["O"]], [["O"], ["O"]])
    with pytest.raises(ValueError):
        metric([["O", "O"]], [["O"]])
