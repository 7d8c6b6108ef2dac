"""The layers that `ELMo` uses, the norm of each vector, and what the mixes of a model have learned."""

from __future__ import annotations

import flax.linen as nn
import jax
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

import elmo_jax
from elmo_jax import LayerNorm, Layers, ScalarMix, UserError, add_bilm, mix_weights, with_bilm
from elmo_jax.config import ModelConfig
from tests.model.elmo_modules import SENTENCES, bilm_of, made, run

CHOICES = ("all", "top", "token", 1, 2)


@pytest.fixture(scope="module")
def bilm() -> elmo_jax.EmbeddingBiLM:
    return bilm_of()


@pytest.fixture(scope="module")
def characters(bilm) -> np.ndarray:
    return bilm.character_ids(SENTENCES)


def normalized(layers: np.ndarray) -> np.ndarray:
    """Each vector of each layer by its own mean and variance (Ba et al. 2016), in float64."""
    layers = np.asarray(layers, np.float64)
    return (layers - layers.mean(-1, keepdims=True)) / np.sqrt(layers.var(-1, keepdims=True) + 1e-12)


def mixed(layers: np.ndarray, choice: str | int, mix: dict[str, np.ndarray]) -> np.ndarray:
    """Equation 1, or the one layer, of layers [B, N, T, D] in float64."""
    if choice == "token":
        return layers[:, 0, :, : layers.shape[-1] // 2]
    if choice == "all":
        shares = np.exp(np.asarray(mix["weights"], np.float64))
        return float(mix["gamma"]) * np.einsum("n,bntd->btd", shares / shares.sum(), layers)
    return float(mix["gamma"]) * layers[:, -1 if choice == "top" else choice]


@pytest.mark.parametrize("norm", ["none", "tokens"])
@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_of_layers_with_and_without_the_norm_of_each_vector(bilm, characters, choice, norm):
    module, variables = made(bilm, characters, layers=choice, layer_norm=norm, num_mixes=2)
    layers, mask, _ = bilm.embed(SENTENCES)
    used = normalized(layers) if norm == "tokens" else layers
    of_characters = run(module, variables, characters)
    of_layers = run(module, variables, layers, mask, method="mix")
    for number in range(2):
        mix = variables["params"].get(f"mix_{number}", {})
        assert list(mix) == {"all": ["gamma", "weights"], "token": []}.get(choice, ["gamma"])
        expected = mixed(used, choice, mix) * mask[..., None]
        for out in (of_characters, of_layers):
            assert_allclose(out.mixes[number], expected, atol=1e-5)
    assert of_layers.penalty == 0


def test_the_norms_of_the_batch_are_those_of_the_mix_of_all_layers_alone(bilm, characters):
    for choice in ("top", "token", 1):
        plain, variables = made(bilm, characters, layers=choice)
        batch = plain.clone(layer_norm=LayerNorm.WITHOUT_BOS_EOS)
        assert_array_equal(run(batch, variables, characters).mixes[0], run(plain, variables, characters).mixes[0])


def test_with_the_norm_of_each_vector_other_sentences_do_not_matter(bilm):
    def vectors(norm: LayerNorm, sentences: list[list[str]]) -> np.ndarray:
        module, variables = made(bilm, bilm.character_ids(sentences), layer_norm=norm)
        return np.asarray(run(module, variables, bilm.character_ids(sentences)).mixes[0])[-1, :3]

    together, alone = [["naïve", "…", "dog"], ["a"], SENTENCES[0]], [SENTENCES[0]]
    assert_allclose(vectors(LayerNorm.TOKENS, together), vectors(LayerNorm.TOKENS, alone), atol=1e-5)
    for norm in (LayerNorm.WITHOUT_BOS_EOS, LayerNorm.WITH_BOS_EOS):  # those of the original programs
        assert np.abs(vectors(norm, together) - vectors(norm, alone)).max() > 0.01


@pytest.mark.parametrize("choice", [0, 3, -1, True, 1.0, "1"])
def test_a_layer_that_the_bilm_lacks_is_refused(bilm, choice):
    expected = "layers: expected 'all', 'top', 'token' or the number of an LSTM layer, 1 to 2, got "
    with pytest.raises(UserError, match=expected):
        bilm.elmo(layers=choice)


def test_a_mix_alone_refuses_a_layer_that_its_argument_lacks():
    with pytest.raises(UserError, match="1 to 2, got 3"):
        ScalarMix(3).init(jax.random.key(0), np.zeros((1, 3, 2, 4), "f4"), np.ones((1, 2), bool))


def test_a_scale_that_is_not_trained_has_no_gradient(bilm, characters):
    for trained in (True, False):
        module, variables = made(bilm, characters, train_gamma=trained)

        def loss(params, module=module, variables=variables):
            return (module.apply({**variables, "params": params}, characters).mixes[0] ** 2).sum()

        gradient = jax.jit(jax.grad(loss))(variables["params"])["mix_0"]
        assert bool(gradient["gamma"] != 0) is trained and np.any(gradient["weights"])


def test_mix_weights_of_linen_and_nnx(bilm, characters):
    class Model(nn.Module):
        elmo: elmo_jax.ELMo
        top: elmo_jax.ELMo

        @nn.compact
        def __call__(self, characters):
            first, second = self.elmo(characters).mixes
            norm = self.param("gamma", nn.initializers.ones_init(), (10,))  # another one's, which is no mix
            return nn.Dense(2)(first + norm * second + self.top(characters).mixes[0])

    variables = Model(bilm.elmo(num_mixes=2), bilm.elmo(layers=2)).init(jax.random.key(0), characters)
    params = variables["params"]
    params["elmo"]["mix_1"] = {"gamma": np.float32(1.5), "weights": np.array([1.0, 3.0, 1000.0], "f4")}
    params["top"]["mix_0"]["gamma"] = np.float32(0.5)
    actual = mix_weights(params)
    assert list(actual) == ["elmo/mix_0", "elmo/mix_1", "top/mix_0"]
    assert_allclose(actual["elmo/mix_0"].weights, [1 / 3] * 3)
    assert_allclose(actual["elmo/mix_1"].weights, [0, 0, 1])
    assert actual["elmo/mix_1"].gamma == 1.5 and actual["top/mix_0"].gamma == 0.5
    assert not actual["top/mix_0"].weights.size
    assert list(mix_weights(variables)) == [f"params/{name}" for name in actual]

    class NNXModel(nnx.Module):
        def __init__(self):
            module = nnx.bridge.ToNNX(bilm.elmo(num_mixes=2), rngs=nnx.Rngs(0)).lazy_init(characters)
            self.elmo = add_bilm(module, bilm)

    model = NNXModel()
    model.elmo.mix_0["weights"][...] = np.log([0.2, 0.3, 0.5])
    for given in (model, nnx.state(model), nnx.state(model, nnx.Param), nnx.to_pure_dict(nnx.state(model, nnx.Param))):
        actual = mix_weights(given)
        assert list(actual) == ["elmo/mix_0", "elmo/mix_1"]
        assert_allclose(actual["elmo/mix_0"].weights, [0.2, 0.3, 0.5], rtol=1e-5)
    alone = ScalarMix().init(jax.random.key(0), np.zeros((1, 4, 2, 3)), np.ones((1, 2), bool))["params"]
    assert_allclose(mix_weights(alone)[""].weights, [0.25] * 4)


def test_the_token_layer_of_a_forward_language_model_is_its_whole_vector(bilm):
    config = ModelConfig(bilm.config.char_cnn, bilm.config.lstm, directions=("forward",))
    module = elmo_jax.ELMo(config, layers="token")
    variables = jax.jit(module.init)(jax.random.key(0), bilm.character_ids(SENTENCES))
    layers = np.random.default_rng(0).normal(size=(1, 3, 2, 5)).astype("f4")
    assert Layers(module.layers) is Layers.TOKEN and "params" not in variables
    assert_allclose(module.apply(variables, layers, np.ones((1, 2), bool), method="mix").mixes[0], layers[:, 0])


def test_with_bilm_needs_no_parameters_of_mixes(bilm, characters):
    module = bilm.elmo(layers="token", dropout=0.0)
    variables = with_bilm(module.init(jax.random.key(0), characters), bilm)
    words = bilm.words(SENTENCES[0])
    assert_allclose(module.apply(variables, characters).mixes[0][0, :3], words, atol=1e-5)
