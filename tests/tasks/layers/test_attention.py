"""Tests attention, the vectors of spans and the mix of layers against AllenNLP's, and the masked softmax."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose

from elmo_jax.model.scalar_mix import ScalarMix, normalize
from elmo_jax.tasks.coref.spans import Kept, Words, head_weights, span_vectors
from elmo_jax.tasks.layers.dense import dot_product_scores
from elmo_jax.tasks.squad.model import BiDAFAttention, Trilinear
from tests.tasks.oracle_cases import each_case
from tests.tasks.weights import close


def trilinear(params):
    first, second, product = np.split(params["_weight_vector"], 3)
    return {"first": first, "second": second, "product": product, "bias": params["_bias"][0]}


@each_case("attention.npz", "linear_matrix_attention")
def test_scores_are_the_oracle(case):
    x, y = case["input"]["x"], case["input"]["y"]
    close(jax.jit(dot_product_scores)(x, y), case["output"]["dot_product"])
    close(jax.jit(Trilinear().apply)({"params": trilinear(case["param"])}, x, y), case["output"]["scores"])


@each_case("attention.npz", "bidaf_attention")
def test_attention_in_both_directions_is_the_oracle(case):
    passage, question, *masks = (
        case["input"][f"{text}{of}"] for of in ("", "_mask") for text in ("passage", "question")
    )
    params = {"scores": trilinear(case["param"])}
    actual = jax.jit(BiDAFAttention().apply)({"params": params}, passage, question, *(mask > 0 for mask in masks))
    real = masks[0] > 0
    close(np.asarray(actual)[real], case["output"]["merged"][real])


@each_case("attention.npz", "span_extractors")
def test_vectors_of_spans_are_the_oracle(case):
    widths = case["endpoint"]["param/_span_width_embedding.weight"]
    score, bias = (case["self_attentive"][f"param/_global_attention._module.{part}"] for part in ("weight", "bias"))

    @jax.jit
    @jax.vmap
    def vectors(x, spans):
        weights = head_weights(x @ score[0] + bias, len(widths))
        words = Words(x, x, weights, jnp.broadcast_to(widths, (len(x), *widths.shape)))
        return span_vectors(words, Kept(spans[:, 0], spans[:, 1] - spans[:, 0], jnp.ones(len(spans), bool)))

    actual = vectors(case["input"]["x"], case["input"]["spans"])
    close(actual, np.concatenate([case["output"]["endpoint"], case["output"]["self_attentive"]], -1))


@each_case("attention.npz", "scalar_mix", "scalar_mix_layer_norm")
def test_mix_of_layers_and_its_gradients_are_the_oracle(case):
    """AllenNLP's mix also has values and gradients at padding, where ours is zero; a mask of ones gives them."""
    given, names = case["input"], [f"scalar_parameters.{layer}" for layer in range(3)]
    mask, layers = given["mask"] > 0, given["layers"].swapaxes(0, 1)
    norm = case.name.endswith("norm")

    def params(arrays):
        return {"gamma": arrays["gamma"][0], "weights": np.concatenate([arrays[name] for name in names])}

    def everywhere(params, layers):
        layers = normalize(layers, mask) if norm else layers
        return ScalarMix().apply({"params": params}, layers, np.ones_like(mask))[0]

    @jax.jit
    def run(params, layers):
        mixed, back = jax.vjp(everywhere, params, layers)
        masked = ScalarMix(layer_norm="with_bos_eos" if norm else "none").apply({"params": params}, layers, mask)[0]
        return mixed, masked, back(given["cotangent"])

    mixed, masked, (of_params, of_layers) = run(params(case["param"]), layers)
    close(mixed, case["output"]["mixed"])
    close(masked, case["output"]["mixed"] * mask[..., None])
    jax.tree.map(close, of_params, params(case["grad"]))
    close(of_layers.swapaxes(0, 1), case["grad_input"]["layers"])


@each_case("attention.npz", "masked_softmax")
def test_masked_softmax_is_the_oracle(case):
    mask, expected = case["input"]["mask"][:, None, :] > 0, case["output"]
    actual = np.asarray(jax.jit(jax.nn.softmax)(case["input"]["scores"], where=mask))
    close(actual, expected["softmax"])
    real = np.broadcast_to(mask, actual.shape)
    assert_allclose(np.log(actual[real]), expected["log_softmax"][real], rtol=0, atol=1e-5)
    empty = ~case["input"]["mask"].any(1)
    assert empty.any() and not actual[empty].any()


def test_masked_softmax_never_sees_padding():
    scores, mask = jnp.array([-200.0, -201.0, -199.5]), jnp.array([True, True, False])
    expected = jax.nn.softmax(scores[:2])  # zeros of padding would take all weight from such low scores
    low, high = jax.jit(lambda: (jax.nn.softmax(scores, where=mask), jax.nn.softmax(-scores, where=mask)))()
    assert_allclose(low, [*expected, 0], atol=1e-5)
    assert_allclose(high, [*expected[::-1], 0], atol=1e-5)


def test_masked_softmax_gradients():
    scores = jnp.array([[1.0, -2.0, 3.0, 0.5], [7.0, 1.0, 2.0, 3.0]])
    mask = jnp.array([[True, True, False, True], [False] * 4])
    cotangent = jnp.array([[1.0, 2.0, 4.0, -1.0], [3.0, 1.0, 2.0, 5.0]])

    @jax.jit
    def gradients(scores):
        mine = jax.grad(lambda s: (jax.nn.softmax(s, where=mask) * cotangent).sum())(scores)
        kept = jnp.array([0, 1, 3])
        plain = jax.grad(lambda s: (jax.nn.softmax(s) * cotangent[0, kept]).sum())(scores[0, kept])
        return mine, jnp.zeros(4).at[kept].set(plain)

    mine, plain = gradients(scores)
    assert_allclose(mine[0], plain, atol=1e-5)
    assert not np.asarray(mine[1]).any()
