"""Tests the CRF and Viterbi decoding against the oracles and against an enumeration of all sequences."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.errors import UserError
from elmo_jax.tasks.layers.crf import (
    CRF,
    Transitions,
    allowed_transitions,
    bio_transitions,
    constrained,
    log_likelihood,
    log_partition,
    viterbi_decode,
)
from tests.tasks.oracle_cases import case_names, each_case, read_case

CASES = [name for name in case_names("crf.npz") if not name.startswith("srl_viterbi")]


def problem(case):
    params = {name: jnp.asarray(array) for name, array in case["param"].items()}
    mask = case["input"]["mask"] > 0
    return params, mask, allowed_transitions(list(case["input"]["labels"]), str(case["input"]["encoding"]))


def joined(logits, params, mask):
    """Adds the scores that AllenNLP's CRF may have for the first and the last tag of a row to the logits there."""
    steps = np.arange(mask.shape[1])
    for name, at in (("start_transitions", 0), ("end_transitions", mask.sum(1, keepdims=True) - 1)):
        if name in params:
            logits = logits + jnp.where((steps == at)[..., None], params[name], 0.0)
    return logits


def likelihood(case, params, mask):
    """Returns the likelihoods of rows, the log-partitions, and the gradients of the sum over rows."""

    @jax.jit
    def both(logits, params):
        def total(logits, params):
            rows = log_likelihood(joined(logits, params, mask), case["input"]["tags"], mask, params["transitions"])
            return rows.sum(), rows

        (whole, rows), grads = jax.value_and_grad(total, (0, 1), has_aux=True)(logits, params)
        return whole, rows, log_partition(joined(logits, params, mask), mask, params["transitions"]), grads

    return both(jnp.asarray(case["input"]["logits"]), params)


# The score of the best sequence follows from its tags.
SCORES = ("output/viterbi_scores", "output/unconstrained_viterbi_scores", "output/score", "output/score_no_start_rule")


@each_case("crf.npz", *CASES, but=SCORES)
def test_likelihood_gradients_and_viterbi_are_the_oracle(case):
    tolerance, expected = (1e-12 if case.name.endswith("float64") else 1e-5), case["output"]
    with jax.enable_x64(case.name.endswith("float64")):
        params, mask, allowed = problem(case)
        whole, rows, partition, (of_logits, of_params) = likelihood(case, params, mask)
    assert whole.dtype == expected["log_likelihood_sum"].dtype
    assert_allclose(whole, expected["log_likelihood_sum"], rtol=1e-5, atol=tolerance)
    assert_allclose(rows, expected["log_likelihood_rows"], rtol=1e-5, atol=tolerance)
    assert_allclose(partition, expected["log_partition_rows"], rtol=1e-5, atol=tolerance)
    assert_allclose(of_logits, case["grad_input"]["logits"], atol=tolerance)
    assert of_params.keys() == case["grad"].keys()
    for part, grad in of_params.items():
        assert_allclose(grad, case["grad"][part], atol=tolerance)
    pairs = {tuple(pair) for pair in np.argwhere(allowed)}
    assert pairs == {tuple(pair) for pair in case["input"]["allowed"]}
    if "viterbi_tags" in expected:
        between, logits = params["transitions"], joined(case["input"]["logits"], params, mask)
        for prefix, chain in (("", constrained(between, allowed)), ("unconstrained_", Transitions(between))):
            actual = jax.jit(viterbi_decode)(logits, mask, chain)
            np.testing.assert_array_equal(actual, expected[f"{prefix}viterbi_tags"])


def decode_probabilities_as_allennlp(probabilities, mask, chain):
    """Chooses among nearly equal sums as AllenNLP's `viterbi_decode`, the tag with the higher number first.

    Its sums start from 100,000, so in float32 they are multiples of 1/128.
    """
    turned = Transitions(chain.between[::-1, ::-1], chain.start[::-1] + 100_000.0)
    actual = jax.jit(viterbi_decode)(probabilities[..., ::-1], mask, turned)
    return jnp.where(mask, probabilities.shape[-1] - 1 - actual, -1)


@each_case("crf.npz", *(name for name in case_names("crf.npz") if name not in CASES), but=SCORES)
def test_bio_decoding_is_the_oracle(case):
    """The rows stand in one batch with others, padded, so that one program decodes all lengths."""
    labels, expected = list(case["input"]["labels"]), case["output"]
    chain = bio_transitions(labels)
    np.testing.assert_array_equal(chain.between, case["input"]["transition"])
    np.testing.assert_array_equal(chain.start, case["input"]["start"])
    length = len(expected["tags"])
    logs = np.full((2, 25, 7), 9.0, np.float32)  # at padding numbers that would win
    logs[1, :length] = case["input"]["log_probabilities"]
    mask = np.arange(25) < np.array([[3], [length]])

    actual, free = (jax.jit(viterbi_decode)(logs, mask, rules) for rules in (chain, chain._replace(start=0.0)))
    summed = decode_probabilities_as_allennlp(jnp.exp(logs), mask, chain)
    for decoding, name in ((actual, "tags"), (free, "tags_no_start_rule"), (summed, "tags_from_probabilities")):
        np.testing.assert_array_equal(decoding[1, :length], expected[name])
        np.testing.assert_array_equal(decoding[1, length:], -1)


def test_no_sequence_that_bio_allows_is_better():
    labels = ["I-B", "O", "B-A", "B-B", "I-A"]
    scores = np.random.default_rng(0).normal(size=(1, 4, 5)).astype(np.float32)
    chain = jax.tree.map(np.asarray, bio_transitions(labels))

    def total(sequence):
        steps = sum(chain.between[pair] for pair in itertools.pairwise(sequence))
        return chain.start[sequence[0]] + steps + scores[0, range(4), sequence].sum()

    best = max(itertools.product(range(5), repeat=4), key=total)
    actual = jax.jit(viterbi_decode)(scores, np.ones((1, 4), bool), bio_transitions(labels))
    assert tuple(np.asarray(actual)[0]) == best


def test_a_tag_of_another_scheme_is_refused():
    with pytest.raises(UserError, match="tags: 'U-ARG0' is not a BIO tag; expected"):
        bio_transitions(["O", "B-V", "U-ARG0"])


def test_all_sequences_one_by_one():
    """The likelihood and the best sequence, which also has scores of both ends, equal those by enumeration."""
    random = np.random.default_rng(0)
    logits, lengths = random.normal(size=(3, 4, 3)).astype(np.float32), (4, 2, 1)
    between, start, end = (random.normal(size=shape).astype(np.float32) for shape in ((3, 3), 3, 3))
    tags, mask = random.integers(0, 3, (3, 4)), np.arange(4) < np.asarray(lengths)[:, None]
    chain = Transitions(*map(jnp.asarray, (between, start, end)))
    rows, best = jax.jit(
        lambda: (log_likelihood(logits, tags, mask, chain.between), viterbi_decode(logits, mask, chain))
    )()
    for row, length in enumerate(lengths):
        scores = {}
        for path in itertools.product(range(3), repeat=length):
            scores[path] = sum(logits[row, t, tag] for t, tag in enumerate(path))
            scores[path] += sum(between[pair] for pair in itertools.pairwise(path))
        total = np.log(np.sum(np.exp(list(scores.values()))))
        assert_allclose(rows[row], scores[tuple(tags[row, :length])] - total, atol=1e-5)
        scores = {path: score + start[path[0]] + end[path[-1]] for path, score in scores.items()}
        highest = max(scores, key=scores.get)
        assert tuple(best[row, :length]) == highest and (best[row, length:] == -1).all()


def test_padding_and_empty_rows_change_nothing():
    case = read_case("crf.npz", "bioul_start_end")
    params, mask, allowed = problem(case)
    transitions, logits, tags = params["transitions"], case["input"]["logits"], case["input"]["tags"]
    chain = constrained(transitions, allowed)

    @jax.jit
    def results(logits, tags, mask):
        grad = jax.grad(lambda c: log_likelihood(logits, tags, mask, c).sum())(transitions)
        return log_likelihood(logits, tags, mask, transitions), viterbi_decode(logits, mask, chain), grad

    rows, decoded, grad = results(logits, tags, mask)
    more = ((0, 2), (0, 3))
    wide = results(
        np.pad(logits, (*more, (0, 0)), constant_values=9.0), np.pad(tags, more, constant_values=-1), np.pad(mask, more)
    )
    assert_allclose(wide[0], [*rows, 0, 0], atol=1e-5)
    np.testing.assert_array_equal(wide[1], np.pad(decoded, more, constant_values=-1))
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-5), wide[2], grad)


def test_initial_values():
    params = jax.jit(CRF(100).init)(jax.random.key(0))["params"]
    assert list(params) == ["transitions"]
    assert_allclose(np.std(params["transitions"]), (2 / 200) ** 0.5, rtol=1e-3)  # Xavier-normal
