"""The coreference model: its size, its first loss, and what it must not depend on."""

import dataclasses
import itertools
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from elmo_jax.tasks.core.task import Embedded
from elmo_jax.tasks.coref.model import CorefModel, SpanRanker
from elmo_jax.tasks.coref.spans import keep_spans
from tests.tasks import checks

LENGTHS = (4, 6, 3)
CONFIG = CorefModel(units=3, hidden=5, feature_dim=2, max_span_width=4, antecedents=3)


@cache
def small():
    """Returns a model with ELMo after its LSTM too, its parameters, and a document."""
    random = np.random.default_rng(3)
    mask = np.arange(6) < np.array(LENGTHS)[:, None]
    vectors, words, output = (random.normal(size=(3, 6, size)).astype(np.float32) for size in (7, 4, 3))
    clusters = np.zeros((1, 13, 4), np.int32)
    for cluster, starts in enumerate([(0, 4, 9), (2, 7, 12)], 1):
        clusters[0, list(starts), 0] = cluster
    arrays = {"clusters": clusters, "speakers": random.integers(0, 2, (1, 13)), "genre": np.array([3])}
    document = (Embedded(vectors, mask, output, words), arrays)
    params = jax.jit(SpanRanker(CONFIG).init)(jax.random.key(0), *document)["params"]
    return jax.tree.map(np.asarray, params), document


@jax.jit
def run(params, document):
    def loss(params):
        output = SpanRanker(CONFIG).apply({"params": params}, *document)
        return output.loss, output.predictions

    return jax.value_and_grad(loss, has_aux=True)(params)


def test_padding_changes_nothing():
    """The document gets more sentences without words, longer rows and a longer array of words."""
    params, (text, arrays) = small()
    (loss, actual), gradient = run(params, (text, arrays))

    def wider(x):
        return np.pad(x, [(0, 2), (0, 3)] + [(0, 0)] * (x.ndim - 2), constant_values=False if x.dtype == bool else 1)

    longer = {name: np.pad(x, [(0, 0), (0, 5)] + [(0, 0)] * (x.ndim - 2)) for name, x in arrays.items() if x.ndim > 1}
    (padded, predictions), other = run(params, (jax.tree.map(wider, text), {**arrays, **longer}))
    assert_allclose(padded, loss, rtol=1e-5)
    number = actual["kept"].sum()
    assert number == predictions["kept"].sum() == int(0.4 * 13)
    for name, array in actual.items():
        assert_array_equal(array[0, :number], predictions[name][0, :number])
    jax.tree.map(partial(assert_allclose, rtol=1e-5, atol=1e-5), other, gradient)


def test_all_parameters_have_gradients_and_the_first_loss_is_that_of_chance():
    params, document = small()
    # all antecedents and the dummy of each of the five kept spans have the score 0: 1, 2, 3, 4 and 4 choices
    zero = jax.tree.map(np.zeros_like, params)
    (loss, actual), _ = run(zero, document)
    kept = list(zip(*(actual[name][0].tolist() for name in ("starts", "ends")), strict=True))
    gold = [document[1]["clusters"][0, start, end - start] for start, end in kept]
    expected = 0.0
    for position in range(5):
        before = gold[max(0, position - 3) : position]
        right = sum(gold[position] > 0 and g == gold[position] for g in before)
        expected += np.log(len(before) + 1) - np.log(max(right, 1))
    assert_allclose(loss, expected, rtol=1e-5)
    _, gradient = run(params, document)
    # The attention over the words of a span does not depend on a constant added to all scores.
    idle = gradient["head_score"].pop("bias")
    assert np.all(np.abs(idle) < 1e-6)
    for path, leaf in jax.tree.leaves_with_path(gradient):
        assert np.all(np.isfinite(leaf)) and np.any(leaf), path


@pytest.mark.parametrize("on", ["lexical_dropout", "lstm_dropout", "dropout"])
def test_each_dropout_acts_in_training_only(on):
    rates = {"lexical_dropout": 0.0, "lstm_dropout": 0.0, "dropout": 0.0, on: 0.5}
    _, (text, arrays) = small()
    problem = jax.tree.map(jnp.asarray, ((text,), arrays))
    checks.dropout_acts_in_training_only(SpanRanker(dataclasses.replace(CONFIG, **rates)), problem)


def test_kept_spans_are_the_best_that_do_not_cross():
    random = np.random.default_rng(1)
    keep = jax.jit(keep_spans, static_argnums=3)
    for density in (0.8, 0.15) * 10:  # with few candidates, less than are wanted can be kept
        scores = random.normal(size=(12, 5)).astype(np.float32)
        valid = random.random((12, 5)) < density
        valid &= np.arange(12)[:, None] + np.arange(5) < 12
        actual = keep(scores, valid, np.int32(12), 0.6)
        chosen = []
        for start, width in sorted(itertools.product(range(12), range(5)), key=lambda place: -scores[place]):
            end = start + width
            crosses = any(s < start <= e < end or start < s <= end < e for s, e in chosen)
            if valid[start, width] and len(chosen) < 7 and not crosses:
                chosen.append((start, end))
        spans = np.stack([actual.starts, actual.starts + actual.widths], 1)[np.asarray(actual.real)]
        assert_array_equal(spans, sorted(chosen))


@pytest.mark.parametrize(("inputs", "millions"), [(500, 1.69), (1524, 2.92)], ids=["base", "ELMo"])
def test_parameters_of_the_paper(inputs, millions):
    """In the original, the characters have 4,950 more parameters in filters and 8 for each of about 115 characters."""
    text = Embedded(jnp.zeros((2, 3, inputs)), jnp.ones((2, 3), bool), None, jnp.zeros((2, 3, 500)))
    arrays = {"clusters": jnp.zeros((1, 6, 10), int), "speakers": jnp.zeros((1, 6), int), "genre": jnp.zeros(1, int)}
    shapes = jax.eval_shape(SpanRanker(CorefModel()).init, jax.random.key(0), text, arrays)["params"]
    assert round(sum(leaf.size for leaf in jax.tree.leaves(shapes)) / 1e6, 2) == millions
