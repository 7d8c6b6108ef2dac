"""ELMo with a biLM that is trained with the task: the same numbers, gradients, checkpoints, and mistakes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

import elmo_jax
from elmo_jax import ELMo, UserError, character_ids, with_bilm
from elmo_jax.checkpoints.layout import flatten
from tests.model.elmo_modules import CONFIG, SENTENCES, SIZE, bilm_of


@pytest.fixture(scope="module")
def bilm() -> elmo_jax.EmbeddingBiLM:
    return bilm_of()


@pytest.fixture(scope="module")
def characters() -> np.ndarray:
    return character_ids(SENTENCES, SIZE)


def init(module, characters):
    return jax.jit(module.init)(jax.random.key(0), characters)


def loss(module, params, characters):
    out = module.apply({"params": params}, characters)
    return jnp.sum(jnp.sin(out.mixes[0]) * (1 + jnp.arange(out.mixes[0].shape[-1])))


def test_the_parameters_are_those_of_the_bilm_and_give_its_mixes(bilm, characters):
    module, frozen = bilm.elmo(trainable=True), bilm.elmo()
    variables = init(module, characters)
    assert variables.keys() == {"params"} and variables["params"].keys() == {"bilm", "mix_0"}
    actual, expected = (flatten(tree) for tree in (variables["params"]["bilm"], bilm.params))
    assert actual.keys() == {path for path in expected if not path.startswith("softmax")}
    for path, leaf in actual.items():
        assert_array_equal(leaf, expected[path])
    mixes = jax.jit(frozen.apply)(with_bilm(init(frozen, characters), bilm), characters).mixes
    assert_allclose(jax.jit(module.apply)(variables, characters).mixes[0], mixes[0], atol=1e-5)


@pytest.mark.parametrize("trainable", [True, "lstms"])
def test_gradients_are_those_of_finite_differences(bilm, characters, trainable):
    module = bilm.elmo(trainable=trainable)
    params = init(module, characters)["params"]
    function = jax.jit(functools.partial(loss, module))
    gradient = jax.jit(jax.grad(functools.partial(loss, module)))(params, characters)["bilm"]
    random = np.random.default_rng(0)
    for name, part in gradient.items():
        if trainable == "lstms" and name == "token_encoder":
            assert not any(np.any(leaf) for leaf in jax.tree.leaves(part))
            continue
        assert all(np.any(leaf) for leaf in jax.tree.leaves(part)), name
        direction = jax.tree.map(lambda leaf: random.standard_normal(leaf.shape).astype("f4"), part)
        ends = []
        for step in (1e-3, -1e-3):
            moved = jax.tree.map(lambda leaf, way, by=step: leaf + by * way, params["bilm"][name], direction)
            ends.append(float(function({**params, "bilm": {**params["bilm"], name: moved}}, characters)))
        slope = sum(np.sum(g * d) for g, d in zip(jax.tree.leaves(part), jax.tree.leaves(direction), strict=True))
        assert_allclose((ends[0] - ends[1]) / 2e-3, slope, rtol=1e-3)


def test_a_step_may_donate_the_parameters_and_the_bilm_stays(bilm, characters):
    module = bilm.elmo(trainable=True)
    params = module.init(jax.random.key(0), characters)["params"]  # not jitted, which would copy them
    before = bilm.embed(SENTENCES)[0]

    @functools.partial(jax.jit, donate_argnums=0)
    def step(params):
        return jax.tree.map(
            lambda p, g: p - 0.1 * g, params, jax.grad(functools.partial(loss, module))(params, characters)
        )

    step(params)
    assert_array_equal(bilm.embed(SENTENCES)[0], before)


def test_in_an_nnx_model_it_is_trained_like_other_parameters(bilm, characters):
    module = nnx.bridge.ToNNX(bilm.elmo(trainable="lstms"), rngs=nnx.Rngs(0)).lazy_init(characters)
    gradient = nnx.jit(nnx.grad(lambda model: model(characters).mixes[0].sum()))(module)
    forward = gradient["bilm"]["forward"]["layer_0"]["kernel"]
    assert np.any(forward[...]) and not np.any(gradient["bilm"]["token_encoder"]["char_embedding"][...])


def test_mistakes(bilm, characters):
    with pytest.raises(UserError, match=r"make the module with bilm.elmo\(trainable=True\)"):
        ELMo(CONFIG, trainable=True)
    with pytest.raises(UserError, match="trainable: expected one of 'none', 'lstms', 'all', got 'some'"):
        bilm.elmo(trainable="some")
    module = bilm.elmo(trainable=True)
    variables = init(module, characters)
    with pytest.raises(UserError, match="a biLM that is trained has no vectors to be cached"):
        module.apply(variables, np.zeros((1, SIZE), np.int32), np.ones((1, 1), np.int32))
    with pytest.raises(UserError, match="no collection 'elmo'"):
        with_bilm(variables, bilm)
