"""The SRL model against AllenNLP's, its losses, its size, and what it must not depend on."""

import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from elmo_jax.tasks.core.task import Embedded
from elmo_jax.tasks.layers.crf import bio_transitions, viterbi_decode
from elmo_jax.tasks.srl.task import RoleTagger, SRLModel, tagging_loss
from tests.tasks import checks
from tests.tasks.layers.test_crf import decode_probabilities_as_allennlp
from tests.tasks.layers.test_highway_lstm import from_allennlp
from tests.tasks.oracle_cases import each_case

TAGS = ("O", "B-V", "I-V", "B-ARG0", "I-ARG0")


def from_oracle(params):
    encoder = "encoder._module."
    layers = from_allennlp({key.removeprefix(encoder): value for key, value in params.items()})
    return {
        "flag": {"embedding": params["binary_feature_embedding.weight"]},
        "lstm": {f"layer_{number}": layer for number, layer in enumerate(layers)},
        "output": {
            "kernel": params["tag_projection_layer._module.weight"].T,
            "bias": params["tag_projection_layer._module.bias"],
        },
    }


@partial(jax.jit, static_argnums=0)
def run(model, params, sentence, arrays):
    return model.apply({"params": params}, sentence, arrays)


@partial(jax.jit, static_argnums=0)
def run_with_gradient(model, params, sentence, arrays):
    def loss(params):
        output = model.apply({"params": params}, sentence, arrays)
        return output.loss, output.predictions

    return jax.value_and_grad(loss, has_aux=True)(params)


@each_case("srl.npz")
def test_allennlp_probabilities_loss_gradient_and_decodings(case):
    given, params, expected = case["input"], case["param"], case["output"]
    mask = given["mask"] > 0
    sentence = Embedded(params["text_field_embedder.token_embedder_tokens.weight"][given["tokens"]], mask)
    arrays = {"flags": given["verb_indicator"], "tags": given["tags"]}
    config = SRLModel(flag_dim=3, layers=4, units=6)
    model = RoleTagger(config, tuple(str(label) for label in given["labels"]))
    (loss, predictions), gradient = run_with_gradient(model, from_oracle(params), sentence, arrays)
    assert_allclose(loss, expected["loss"], rtol=1e-5)
    probabilities = np.exp(predictions["log_probabilities"])
    assert_allclose(probabilities[mask], expected["class_probabilities"][mask], rtol=0, atol=1e-5)
    log_probabilities = np.log(expected["class_probabilities"][mask])
    bound = 1e-5 * np.abs(expected["logits"]).max()
    assert_allclose(predictions["log_probabilities"][mask], log_probabilities, rtol=0, atol=bound)
    reference = case["grad"]["binary_feature_embedding.weight"]
    assert_allclose(gradient["flag"]["embedding"], reference, rtol=0, atol=1e-5 * np.abs(reference).max())
    assert_array_equal(predictions["tags"], np.where(mask, expected["tags_from_log_probabilities"], -1))
    probabilities = expected["class_probabilities"]
    chain = bio_transitions(model.tags)
    logs = jnp.log(probabilities)
    for decoded, key in [
        (jax.jit(viterbi_decode)(logs, mask, chain), "tags_from_log_probabilities"),
        (jax.jit(viterbi_decode)(logs, mask, chain._replace(start=0.0)), "tags_from_log_probabilities_no_start_rule"),
        (decode_probabilities_as_allennlp(probabilities, mask, chain), "tags_from_probabilities"),
    ]:
        assert_array_equal(decoded, np.where(mask, expected[key], -1))
    assert_array_equal(chain.between, expected["transition"])
    assert_array_equal(chain.start, expected["start"])


def test_the_loss_is_the_mean_over_sentences_of_the_mean_over_words():
    rng = np.random.default_rng(0)
    log_probabilities = np.log(rng.dirichlet(np.ones(4), (3, 5))).astype(np.float32)
    tags = rng.integers(0, 4, (3, 5))
    lengths = np.array([5, 2, 0])  # the last row only fills the batch
    token = -np.take_along_axis(log_probabilities, tags[..., None], 2)[..., 0]
    expected = (token[0].mean() + token[1, :2].mean()) / 2
    actual = jax.jit(tagging_loss)(log_probabilities, tags, np.arange(5) < lengths[:, None])
    assert_allclose(actual, expected, rtol=1e-5)


@cache
def small():
    """Returns a model with ELMo at its output, its parameters, and a batch."""
    rng = np.random.default_rng(3)
    model = RoleTagger(SRLModel(flag_dim=2, layers=2, units=6, dropout=0.3), TAGS)
    mask = np.arange(7) < np.array([[7], [3], [5]])
    vectors = rng.normal(size=(3, 7, 4)).astype(np.float32)
    elmo = (rng.normal(size=(3, 7, 3)) * mask[..., None]).astype(np.float32)
    sentence = Embedded(vectors, mask, elmo)
    arrays = {"flags": rng.integers(0, 2, (3, 7)), "tags": rng.integers(0, 5, (3, 7))}
    params = jax.jit(model.init)(jax.random.key(0), sentence, arrays)["params"]
    return model, jax.tree.map(np.asarray, params), sentence, arrays


def test_rows_do_not_depend_on_padding_or_on_each_other():
    model, params, sentence, arrays = small()
    predictions = run(model, params, sentence, arrays).predictions
    pick = np.array([2, 0, 1])
    permuted = run(model, params, *jax.tree.map(lambda x: x[pick], (sentence, arrays))).predictions
    for key in predictions:
        assert_allclose(permuted[key], np.asarray(predictions[key])[pick], atol=1e-5)
    alone = run(model, params, *jax.tree.map(lambda x: x[1:2, :3], (sentence, arrays))).predictions
    for key in predictions:
        assert_allclose(alone[key], np.asarray(predictions[key])[1:2, :3], atol=1e-5)


def test_all_parameters_have_gradients_and_the_first_loss_is_that_of_chance():
    model, params, sentence, arrays = small()
    (loss, _), gradient = run_with_gradient(model, params, sentence, arrays)
    assert abs(loss - math.log(len(TAGS))) < 0.7
    for path, leaf in jax.tree.leaves_with_path(gradient):
        assert np.all(np.isfinite(leaf)) and np.any(leaf), path


def test_dropout_acts_in_training_only():
    model, _, sentence, arrays = small()
    checks.dropout_acts_in_training_only(model, ((sentence,), arrays))


@pytest.mark.parametrize(("inputs", "millions"), [(100, 7.79), (1024, 9.46), (1124, 9.64)])
def test_parameters_of_the_paper(inputs, millions):
    """130 tags and no word vectors are counted; with ELMo alone, AllenNLP has 9.45 M, since its block k has no bias."""
    model = RoleTagger(SRLModel(), ("O", *(f"B-{number}" for number in range(129))))
    sentence = Embedded(jnp.zeros((1, 2, inputs)), jnp.ones((1, 2), bool))
    arrays = {"flags": jnp.zeros((1, 2), int), "tags": jnp.zeros((1, 2), int)}
    shapes = jax.eval_shape(model.init, jax.random.key(0), sentence, arrays)["params"]
    assert round(sum(leaf.size for leaf in jax.tree.leaves(shapes)) / 1e6, 2) == millions
