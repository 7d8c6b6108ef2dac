import subprocess
import sys

import pytest

from elmo_jax.tasks.coref.metric import evaluate, metric
from tests.tasks.format_cases import names, oracle

pytestmark = pytest.mark.quick

# Each entry has the output of the reference scorer 8.01, cut off after two decimals, and that of AllenNLP's Python
# scorer in full precision, for documents without clusters of one mention.
CASES = pytest.mark.parametrize("case", oracle("coref"), ids=names("coref"))
SCORES = {"muc": "muc", "bcub": "b_cubed", "ceafe": "ceafe"}


def as_printed(fraction):
    """In percent, cut off after two decimals and not rounded; two products by 100 would round differently."""
    return int(fraction * 10000) / 100


def documents(clusters):
    return [[[tuple(mention) for mention in cluster] for cluster in document] for document in clusters]


@CASES
def test_reference_scorer(case):
    scores = evaluate(documents(case["gold"]), documents(case["predicted"]))
    for name, expect in case["official_scorer"].items():
        actual = getattr(scores, SCORES[name])
        printed = {part: as_printed(getattr(actual, part)) for part in ("recall", "precision", "f1")}
        assert printed == expect, name
    f1s = [as_printed(getattr(scores, name).f1) for name in SCORES.values()]
    assert sum(f1s) / 3 == case["official_average_f1"]


@CASES
def test_python_scorer(case):
    scores = evaluate(documents(case["gold"]), documents(case["predicted"]))
    for name, expect in case["python_scorer"].items():
        for part, value in expect.items():
            assert getattr(getattr(scores, SCORES[name]), part) == pytest.approx(value, abs=1e-14)
    assert scores.average_f1 == pytest.approx(case["python_average_f1"], abs=1e-14)
    actual = metric(documents(case["gold"]), documents(case["predicted"]))
    assert list(actual)[0] == "average_f1" and actual["average_f1"] == 100 * scores.average_f1
    assert actual["b_cubed_recall"] == 100 * scores.b_cubed.recall


def test_what_is_printed_is_cut_off():
    assert [as_printed(x) for x in (2 / 3, 1.0, 0.99999, 0.0)] == [66.66, 100.0, 99.99, 0.0]


def test_sums_over_documents_come_before_the_division():
    gold = [[[(0, 0), (1, 1)]], [[(0, 0), (1, 1), (2, 2), (3, 3)]]]
    predicted = [[], [[(0, 0), (1, 1), (2, 2), (3, 3)]]]
    scores = evaluate(gold, predicted)
    assert (scores.muc.recall, scores.b_cubed.recall, scores.ceafe.recall) == (3 / 4, 4 / 6, 1 / 2)
    assert scores.muc.precision == scores.b_cubed.precision == scores.ceafe.precision == 1


def test_clusters_of_one_mention_count():
    scores = evaluate([[[(0, 0)], [(1, 1), (2, 2)]]], [[[(0, 0)], [(1, 1)], [(2, 2)]]])
    assert (scores.b_cubed.recall_sum, scores.b_cubed.gold) == (2, 3)
    assert (scores.b_cubed.precision_sum, scores.b_cubed.predicted) == (3, 3)
    assert scores.ceafe.recall_sum == pytest.approx(1 + 2 / 3)
    assert (scores.ceafe.gold, scores.ceafe.predicted) == (2, 3)
    assert (scores.muc.recall_sum, scores.muc.gold, scores.muc.predicted) == (0, 1, 0)


def test_ceafe_is_the_best_alignment_not_the_greedy_one():
    gold = [[[(0, 0), (1, 1), (2, 2)], [(3, 3), (4, 4)]]]
    predicted = [[[(0, 0), (1, 1), (3, 3), (4, 4)], [(2, 2), (5, 5)]]]
    # The best alignment has 2 * 2 / 6 (the second with the first) and 2 * 1 / 5; the other one has 2 * 2 / 7 and 0.
    assert evaluate(gold, predicted).ceafe.recall_sum == pytest.approx(4 / 6 + 2 / 5)


def test_no_documents_and_no_clusters():
    assert set(metric([], []).values()) == {0.0}
    assert set(metric([[]], [[]]).values()) == {0.0}


def test_what_cannot_be_scored():
    with pytest.raises(ValueError):
        evaluate([[]], [])
    with pytest.raises(ValueError, match="a mention is in two clusters"):
        evaluate([[[(0, 0), (1, 1)]]], [[[(0, 0), (1, 1)], [(1, 1), (2, 2)]]])


def test_scipy_is_imported_only_to_score():
    code = "import sys, elmo_jax.tasks.coref.metric; print('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
