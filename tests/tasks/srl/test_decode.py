"""Tests Viterbi decoding under the rules of BIO tags against AllenNLP's and against an enumeration of all sequences."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from elmo_jax.errors import UserError
from elmo_jax.tasks.srl.decode import bio_rules
from tests.tasks.oracle_cases import read_case
from tests.tasks.srl.allennlp_rounding import decode_as_allennlp, fast_viterbi


@pytest.mark.parametrize("number", range(4))
def test_allennlp_decodings(number):
    """The rows stand in one batch with others, padded, so that one program decodes all lengths."""
    case = read_case("crf.npz", f"srl_viterbi_{number}")
    given, expected = case["input"], case["output"]
    labels = [str(label) for label in given["labels"]]
    length = len(given["log_probabilities"])
    scores = np.full((2, 25, 7), 9.0, np.float32)  # at padding numbers that would win
    scores[1, :length] = given["log_probabilities"]
    mask = np.arange(25) < np.array([[3], [length]])
    rules = bio_rules(labels)
    assert_array_equal(rules.transitions, given["transition"])
    assert_array_equal(rules.starts, given["start"])
    tags, score = fast_viterbi(scores, mask, rules)
    assert_array_equal(tags[1, :length], expected["tags"])
    assert_allclose(score[1], expected["score"], rtol=0, atol=2e-5)
    assert not np.any(tags[1, length:])
    tags, score = fast_viterbi(scores, mask, bio_rules(labels, "ignored"))
    assert_array_equal(tags[1, :length], expected["tags_no_start_rule"])
    assert_allclose(score[1], expected["score_no_start_rule"], rtol=0, atol=2e-5)
    tags = decode_as_allennlp(np.exp(scores), mask, rules)
    assert_array_equal(tags[1, :length], expected["tags_from_probabilities"])


def test_no_allowed_sequence_is_better():
    labels = ["I-B", "O", "B-A", "B-B", "I-A"]
    scores = np.random.default_rng(0).normal(size=(1, 4, 5)).astype(np.float32)
    rules = bio_rules(labels)

    def total(sequence):
        steps = sum(rules.transitions[pair] for pair in itertools.pairwise(sequence))
        return rules.starts[sequence[0]] + steps + scores[0, range(4), sequence].sum()

    best = max(itertools.product(range(5), repeat=4), key=total)
    tags, score = fast_viterbi(scores, np.ones((1, 4), bool), rules)
    assert tuple(np.asarray(tags)[0]) == best
    assert_allclose(score[0], total(best), atol=1e-5)


def test_a_tag_of_another_scheme_is_refused():
    with pytest.raises(UserError, match="tags: 'U-ARG0' is not a BIO tag; expected"):
        bio_rules(["O", "B-V", "U-ARG0"])
