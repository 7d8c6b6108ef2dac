"""Tests the coreference model against e2e-coref, from words to clusters."""

import json
from functools import partial

import jax
import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from elmo_jax.tasks.core.task import Embedded
from elmo_jax.tasks.coref.model import CorefModel, SpanRanker, antecedent_indices, distance_bucket
from elmo_jax.tasks.coref.task import clusters
from tests.tasks.coref.from_originals import e2e_words, from_e2e
from tests.tasks.oracle_cases import each_case


def gold_table(starts, ends, ids, words, widest):
    table = np.zeros((1, words, widest), np.int32)
    for start, end, cluster in zip(starts, ends, ids, strict=True):
        if end - start < widest:
            table[0, start, end - start] = cluster
    return table


def sorted_clusters(text):
    return sorted(sorted(map(tuple, cluster)) for cluster in json.loads(str(text)))


@partial(jax.jit, static_argnums=(0, 1))
def run(model, make, params, words, arrays):
    """The loss, what was computed for it, and the gradients; `make` gives `Embedded`."""

    def loss(params, words):
        sentences = make(words)
        output = model.apply({"params": params}, sentences, arrays)
        ranking, kept = model.apply(
            {"params": params}, sentences, arrays, method="rank", capture_intermediates=True, mutable=["intermediates"]
        )
        return output.loss, (ranking, output.predictions, kept["intermediates"]["head_score"]["__call__"][0])

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, words)


def check_choices(ranking, predictions, spans, antecedents, clusters_text):
    """Asserts that kept spans, antecedents and clusters are exactly equal."""
    number = len(spans)
    assert ranking.kept.real.sum() == number
    actual = {name: np.asarray(array[0]) for name, array in predictions.items()}
    assert_array_equal(np.stack([actual["starts"], actual["ends"]], 1)[:number], spans)
    assert_array_equal(actual["antecedents"][:number], antecedents)
    assert clusters(**actual) == sorted_clusters(clusters_text)


TEXTS = ("input/sentences_json", "input/speakers_json", "input/clusters_json")  # which other arrays have as numbers


@each_case("coref_original.npz", but=TEXTS)
def test_e2e_coref(case):
    given, params, expected = case["input"], case["param"], case["output"]
    config = json.loads(str(given["config_json"]))
    lengths = given["text_len"]
    mask = np.arange(lengths.max()) < lengths[:, None]
    model = SpanRanker(
        CorefModel(
            units=config["contextualization_size"],
            hidden=config["ffnn_size"],
            feature_dim=config["feature_size"],
            max_span_width=config["max_span_width"],
            antecedents=config["max_top_antecedents"],
        )
    )
    gold = (given["gold_starts"], given["gold_ends"], given["cluster_ids"])
    table = gold_table(*gold, mask.sum(), config["max_span_width"])
    arrays = {"clusters": table, "speakers": given["speaker_ids"][None], "genre": given["genre"][None]}

    def make(words):
        vectors, heads = e2e_words(words, given)
        return Embedded(vectors, mask, words=heads)

    own = {"char_embeddings", "conv_0/w", "conv_0/b", "conv_1/w", "conv_1/b"}
    own |= {"lm_aggregation/lm_scores", "lm_aggregation/lm_scaling"}
    (loss, (ranking, predictions, heads)), gradients = run(
        model, make, from_e2e(params), {key: params[key] for key in own}, arrays
    )
    close = partial(assert_allclose, rtol=0, atol=1e-5)
    close(np.asarray(ranking.mentions)[np.asarray(ranking.candidates)], expected["candidate_mention_scores"])
    starts, widths = np.nonzero(ranking.candidates)
    assert_array_equal(starts, expected["candidate_starts"])
    assert_array_equal(starts + widths, expected["candidate_ends"])
    close(heads, expected["head_scores"])
    close(ranking.antecedents, expected["top_antecedent_scores"])
    positions = antecedent_indices(*expected["top_antecedents"].shape)
    exist = np.isfinite(expected["top_antecedent_scores"][:, 1:])
    assert_array_equal(positions[exist], expected["top_antecedents"][exist])
    assert_allclose(loss, expected["loss"], rtol=1e-5)
    chosen = expected["predicted_antecedents"]
    spans = np.stack([expected["top_span_starts"], expected["top_span_ends"]], 1)
    best = np.argsort(-np.where(ranking.candidates, ranking.mentions, -np.inf), axis=None, kind="stable")[: len(spans)]
    first, width = np.divmod(np.sort(best), config["max_span_width"])  # the kept spans if they might cross
    changed = not np.array_equal(np.stack([first, first + width], 1), spans)
    assert changed == expected["crossing_rule_changed_the_choice"]
    check_choices(ranking, predictions, spans, chosen, expected["clusters_json"])
    jax.tree.map(close, gradients[0], from_e2e(case["grad"]))
    jax.tree.map(close, gradients[1], {key: case["grad"][key] for key in own})


@each_case("coref.npz", "buckets")
def test_distance_buckets(case):
    assert_array_equal(distance_bucket(case["input"]["distance"]), case["output"]["bucket"])
