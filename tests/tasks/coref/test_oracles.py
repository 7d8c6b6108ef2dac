"""Tests the coreference model against e2e-coref and AllenNLP's resolver, from words to clusters."""

import json
from functools import partial

import jax
import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from elmo_jax.tasks.core.task import Embedded
from elmo_jax.tasks.coref.mentions import Words, head_weights, span_vectors
from elmo_jax.tasks.coref.metric import evaluate
from elmo_jax.tasks.coref.model import CorefModel, SpanRanker
from elmo_jax.tasks.coref.ranking import antecedent_places, distance_bucket
from elmo_jax.tasks.coref.spans import Kept, keep_spans
from elmo_jax.tasks.coref.task import clusters
from tests.tasks.coref.from_originals import e2e_words, from_allennlp, from_e2e
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
        layers = {name: kept["intermediates"][name]["__call__"][0] for name in ("lstm", "head_score")}
        return output.loss, (ranking, output.predictions, layers)

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, words)


def check_choices(ranking, predictions, spans, antecedents, clusters_text):
    """Asserts that kept spans, antecedents and clusters are exactly equal."""
    number = len(spans)
    assert ranking.kept.real.sum() == number
    found = {name: np.asarray(array[0]) for name, array in predictions.items()}
    assert_array_equal(np.stack([found["starts"], found["ends"]], 1)[:number], spans)
    assert_array_equal(found["antecedents"][:number], antecedents)
    assert clusters(**found) == sorted_clusters(clusters_text)


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
            widest=config["max_span_width"],
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
    (loss, (ranking, predictions, layers)), gradients = run(
        model, make, from_e2e(params), {key: params[key] for key in own}, arrays
    )
    close = partial(assert_allclose, rtol=0, atol=1e-5)
    close(np.asarray(ranking.mentions)[np.asarray(ranking.candidates)], expected["candidate_mention_scores"])
    starts, widths = np.nonzero(ranking.candidates)
    assert_array_equal(starts, expected["candidate_starts"])
    assert_array_equal(starts + widths, expected["candidate_ends"])
    close(layers["head_score"], expected["head_scores"])
    close(ranking.antecedents, expected["top_antecedent_scores"])
    places = antecedent_places(*expected["top_antecedents"].shape)
    exist = np.isfinite(expected["top_antecedent_scores"][:, 1:])
    assert_array_equal(places[exist], expected["top_antecedents"][exist])
    crossing = keep_spans(ranking.mentions, ranking.candidates, mask.sum(), config["top_span_ratio"], "allowed")
    changed = not np.array_equal(crossing.starts, ranking.kept.starts)
    assert changed == expected["crossing_rule_changed_the_choice"]
    assert_allclose(loss, expected["loss"], rtol=1e-6)
    chosen = expected["predicted_antecedents"]
    spans = np.stack([expected["top_span_starts"], expected["top_span_ends"]], 1)
    check_choices(ranking, predictions, spans, chosen, expected["clusters_json"])
    jax.tree.map(close, gradients[0], from_e2e(case["grad"]))
    jax.tree.map(close, gradients[1], {key: case["grad"][key] for key in own})


@each_case("coref.npz", "three_sentences", "long_distance")
def test_allennlp(case):
    given, params, expected = case["input"], case["param"], case["output"]
    widest = int(given["max_span_width"])
    table = gold_table(*given["spans"].T, given["span_labels"] + 1, given["tokens"].size, widest)
    mask = np.arange(given["sentence_lengths"].max()) < given["sentence_lengths"][:, None]
    places = np.zeros(mask.shape, int)
    places[mask] = np.arange(given["tokens"].size)
    lstm = params["_context_layer._module.weight_hh_l0"]
    model = SpanRanker(
        CorefModel(
            variant="allennlp",
            units=lstm.shape[1],
            hidden=len(params["_antecedent_scorer._module.weight"][0]),
            feature_dim=params["_distance_embedding.weight"].shape[1],
            widest=widest,
            antecedents=int(given["max_antecedents"]),
            spans_per_word=float(given["spans_per_word"]),
            head="input",
        )
    )

    def make(words):
        return Embedded(words[given["tokens"][0]][places], mask)

    embeddings = "_text_field_embedder.token_embedder_tokens.weight"
    (loss, (ranking, predictions, layers)), gradients = run(
        model, make, from_allennlp(params), params[embeddings], {"clusters": table}
    )
    close = partial(assert_allclose, rtol=0, atol=1e-4)
    starts, widths = np.nonzero(ranking.candidates)
    assert_array_equal(np.stack([starts, starts + widths], 1), given["spans"])
    close(layers["lstm"], expected["contextualized"])
    table = params["_endpoint_span_extractor._span_width_embedding.weight"]
    words = Words(
        layers["lstm"][0],
        params[embeddings][given["tokens"][0]],
        head_weights(layers["head_score"][:, 0], widest),
        np.broadcast_to(table, (given["tokens"].size, *table.shape)),
    )
    vectors = span_vectors(words, Kept(starts, widths, np.ones(len(starts), bool)))
    close(vectors, np.concatenate([expected["endpoint_spans"], expected["attended_spans"]], -1)[0])
    close(np.asarray(ranking.mentions)[starts, widths], expected["mention_scores"][0, :, 0])
    close(ranking.antecedents, expected["coreference_scores"][0])
    close(loss, expected["loss"])
    places = antecedent_places(*expected["antecedent_indices"].shape)
    exist = np.isfinite(expected["coreference_scores"][0, :, 1:])
    assert_array_equal(places[exist], expected["antecedent_indices"][exist])
    assert_array_equal(given["spans"][expected["top_span_indices"][0]], expected["top_spans"][0])
    column = expected["predicted_antecedents"][0]  # of the nearest first; -1 for the dummy
    chosen = np.where(column < 0, -1, np.arange(len(column)) - 1 - column)
    check_choices(ranking, predictions, expected["top_spans"][0], chosen, expected["clusters_json"])
    gold, predicted = (sorted_clusters(text) for text in (given["gold_clusters_json"], expected["clusters_json"]))
    scores = evaluate([gold], [predicted])
    parts = (scores.muc, scores.b_cubed, scores.ceafe)
    for name in ("precision", "recall", "f1"):
        assert_allclose(np.mean([getattr(part, name) for part in parts]), expected[f"coref_{name}"], rtol=1e-6)
    mentions = {mention for cluster in gold for mention in cluster}
    found = mentions & set(map(tuple, expected["top_spans"][0].tolist()))
    assert_allclose(len(found) / len(mentions), expected["mention_recall"], rtol=1e-6)
    gradient = from_allennlp(case["grad"])
    gradient["lstm"]["bias"] /= 2  # the two biases of PyTorch have the gradient of their sum, each
    jax.tree.map(close, gradients[0], gradient)
    close(gradients[1], case["grad"][embeddings])


@each_case("coref.npz", "buckets")
def test_distance_buckets(case):
    assert_array_equal(distance_bucket(case["input"]["distance"]), case["output"]["bucket"])
