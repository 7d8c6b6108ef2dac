"""Tests the coreference model against e2e-coref and AllenNLP's resolver, from words to clusters."""

import json
from functools import partial

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from elmo_jax.tasks.coref.decode import clusters
from elmo_jax.tasks.coref.model import Coref, CorefModel
from elmo_jax.tasks.coref.ranking import distance_bucket
from elmo_jax.tasks.embedded import Embedded
from tests.tasks.coref.from_originals import e2e_words, from_allennlp, from_e2e
from tests.tasks.oracle_cases import read_case


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
    """The ranking, the loss, the predictions, and the gradients of the loss; `make` gives `Embedded`."""

    def loss(params, words):
        sentences = make(words)
        output = model.apply({"params": params}, sentences, arrays)
        ranking = model.apply({"params": params}, sentences, arrays, method="rank")
        return output.loss, (ranking, output.predictions)

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, words)


def check_choices(ranking, predictions, spans, antecedents, clusters_text):
    """Asserts that kept spans, antecedents and clusters are exactly equal."""
    number = len(spans)
    assert ranking.kept.real.sum() == number
    found = {name: np.asarray(array[0]) for name, array in predictions.items()}
    assert_array_equal(np.stack([found["starts"], found["ends"]], 1)[:number], spans)
    assert_array_equal(found["antecedents"][:number], antecedents)
    assert clusters(**found) == sorted_clusters(clusters_text)


@pytest.mark.parametrize("name", ["two_speakers", "longer"])
def test_e2e_coref(name):
    case = read_case("coref_original.npz", name)
    given, params, expected = case["input"], case["param"], case["output"]
    config = json.loads(str(given["config_json"]))
    lengths = given["text_len"]
    mask = np.arange(lengths.max()) < lengths[:, None]
    model = Coref(
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
    (loss, (ranking, predictions)), gradients = run(
        model, make, from_e2e(params), {key: params[key] for key in own}, arrays
    )
    close = partial(assert_allclose, rtol=0, atol=1e-5)
    close(np.asarray(ranking.mentions)[np.asarray(ranking.candidates)], expected["candidate_mention_scores"])
    starts, widths = np.nonzero(ranking.candidates)
    assert_array_equal(starts, expected["candidate_starts"])
    assert_array_equal(starts + widths, expected["candidate_ends"])
    close(ranking.antecedents, expected["top_antecedent_scores"])
    assert_allclose(loss, expected["loss"], rtol=1e-6)
    chosen = expected["predicted_antecedents"]
    spans = np.stack([expected["top_span_starts"], expected["top_span_ends"]], 1)
    check_choices(ranking, predictions, spans, chosen, expected["clusters_json"])
    jax.tree.map(close, gradients[0], from_e2e(case["grad"]))
    jax.tree.map(close, gradients[1], {key: case["grad"][key] for key in own})


@pytest.mark.parametrize("name", ["three_sentences", "long_distance"])
def test_allennlp(name):
    case = read_case("coref.npz", name)
    given, params, expected = case["input"], case["param"], case["output"]
    widest = int(given["max_span_width"])
    table = gold_table(*given["spans"].T, given["span_labels"] + 1, given["tokens"].size, widest)
    mask = np.arange(given["sentence_lengths"].max()) < given["sentence_lengths"][:, None]
    places = np.zeros(mask.shape, int)
    places[mask] = np.arange(given["tokens"].size)
    lstm = params["_context_layer._module.weight_hh_l0"]
    model = Coref(
        CorefModel(
            variant="allennlp",
            units=lstm.shape[1],
            hidden=len(params["_antecedent_scorer._module.weight"][0]),
            feature_dim=params["_distance_embedding.weight"].shape[1],
            widest=widest,
            antecedents=int(given["max_antecedents"]),
            head="input",
        )
    )

    def make(words):
        return Embedded(words[given["tokens"][0]][places], mask)

    embeddings = "_text_field_embedder.token_embedder_tokens.weight"
    (loss, (ranking, predictions)), gradients = run(
        model, make, from_allennlp(params), params[embeddings], {"clusters": table}
    )
    close = partial(assert_allclose, rtol=0, atol=1e-4)
    starts, widths = np.nonzero(ranking.candidates)
    assert_array_equal(np.stack([starts, starts + widths], 1), given["spans"])
    close(np.asarray(ranking.mentions)[starts, widths], expected["mention_scores"][0, :, 0])
    close(ranking.antecedents, expected["coreference_scores"][0])
    close(loss, expected["loss"])
    column = expected["predicted_antecedents"][0]  # of the nearest first; -1 for the dummy
    chosen = np.where(column < 0, -1, np.arange(len(column)) - 1 - column)
    check_choices(ranking, predictions, expected["top_spans"][0], chosen, expected["clusters_json"])
    gradient = from_allennlp(case["grad"])
    gradient["lstm"]["bias"] /= 2  # the two biases of PyTorch have the gradient of their sum, each
    jax.tree.map(close, gradients[0], gradient)
    close(gradients[1], case["grad"][embeddings])


def test_distance_buckets():
    case = read_case("coref.npz", "buckets")
    assert_array_equal(distance_bucket(case["input"]["distance"]), case["output"]["bucket"])
