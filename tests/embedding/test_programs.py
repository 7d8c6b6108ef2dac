"""The biLM inside other programs, which trace, donate, copy, fork, guard transfers or set JAX's flags."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import pickle
import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from elmo_jax import CachedWords, EmbeddingBiLM, FrozenBiLM, UserError, add_bilm, with_bilm
from tests.embedding.small_bilm import bilm_of

SENTENCES = [["the", "cat"], ["sat"]]


@pytest.fixture
def bilm() -> EmbeddingBiLM:
    return bilm_of()


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    bilm = bilm_of()
    module, characters = bilm.elmo(), bilm.character_ids(SENTENCES)
    return np.asarray(module.apply(with_bilm(module.init(jax.random.key(0), characters), bilm), characters).mixes[0])


class Tagger(nnx.Module):
    def __init__(self, bilm: EmbeddingBiLM, rngs: nnx.Rngs) -> None:
        characters = bilm.character_ids(SENTENCES)
        self.elmo = add_bilm(nnx.bridge.ToNNX(bilm.elmo(), rngs=rngs).lazy_init(characters), bilm)


@pytest.mark.parametrize("traced", [False, True])
def test_embed_works_after_and_while_a_model_is_made(bilm, traced):
    layers = bilm_of().embed(SENTENCES)[0]
    actual = []

    class Model(nn.Module):
        @nn.compact
        def __call__(self, characters):
            actual.append(bilm.embed(SENTENCES)[0])
            return bilm.elmo()(characters).mixes[0]

    model = Model()
    init = jax.jit(model.init) if traced else model.init
    init(jax.random.key(0), bilm.character_ids(SENTENCES))
    for vectors in (*actual, bilm.embed(SENTENCES)[0]):
        assert_array_equal(vectors, layers)


@pytest.mark.parametrize("cache", [False, True])
def test_a_step_may_donate_all_variables(bilm, expected, cache):
    params, words = jax.tree.map(np.copy, bilm.params), ["the"]
    cached = CachedWords(
        words if cache else [], bilm.words(words if cache else []), bilm.config.char_cnn.max_characters
    )
    vectors, inputs = cached.vectors.copy(), cached(SENTENCES)

    class Two(nn.Module):
        @nn.compact
        def __call__(self, *inputs):
            return bilm.elmo()(*inputs).mixes[0], bilm.elmo(layers="top")(*inputs).mixes[0]

    model = Two()
    stored = jax.device_get(jax.jit(model.init)(jax.random.key(0), *inputs))
    step = jax.jit(lambda variables: jax.tree.map(lambda leaf: leaf + 1, variables), donate_argnums=0)
    bystander = with_bilm(stored, bilm, cached)
    given = with_bilm(stored, bilm, cached)
    step(given)
    assert any(leaf.is_deleted() for leaf in jax.tree.leaves(given["bilm"]))  # the step did donate
    for variables in (bystander, with_bilm(stored, bilm, cached)):
        assert_allclose(jax.jit(model.apply)(variables, *inputs)[0], expected, atol=1e-5)
    jax.tree.map(assert_array_equal, bilm.params, params)
    assert_array_equal(cached.vectors, vectors)


def test_an_nnx_step_may_donate_the_model(bilm, expected):
    characters = bilm.character_ids(SENTENCES)

    def change(model):
        nnx.update(model, jax.tree.map(lambda x: x + 1, nnx.state(model, FrozenBiLM)))

    nnx.jit(change, donate_argnums=0)(Tagger(bilm, nnx.Rngs(0)))
    assert_allclose(Tagger(bilm, nnx.Rngs(0)).elmo(characters).mixes[0], expected, atol=1e-5)


def test_an_nnx_model_may_be_made_while_jax_traces(bilm, expected):
    characters = bilm.character_ids(SENTENCES)
    abstract = nnx.eval_shape(lambda: Tagger(bilm, nnx.Rngs(0)))
    made = nnx.jit(lambda: Tagger(bilm, nnx.Rngs(0)))()
    assert_allclose(made.elmo(characters).mixes[0], expected, atol=1e-5)
    bare = nnx.eval_shape(lambda: nnx.bridge.ToNNX(bilm.elmo(), rngs=nnx.Rngs(0)).lazy_init(characters))
    added = nnx.state(add_bilm(bare, bilm), FrozenBiLM)
    assert jax.tree.map(jnp.shape, added) == jax.tree.map(jnp.shape, nnx.state(made.elmo, FrozenBiLM))
    graph, state = nnx.split(abstract)
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, nnx.state(made))
    assert_allclose(nnx.merge(graph, nnx.state(made)).elmo(characters).mixes[0], expected, atol=1e-5)
    assert_array_equal(bilm.embed(SENTENCES)[0], bilm_of().embed(SENTENCES)[0])  # nothing traced was kept


def test_the_bilm_may_be_added_while_jax_traces(bilm, expected):
    characters, module = bilm.character_ids(SENTENCES), bilm.elmo()
    stored = jax.jit(module.init)(jax.random.key(0), characters)
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), with_bilm(stored, bilm))
    abstract = jax.eval_shape(module.init, jax.random.key(0), characters)
    for actual in (
        jax.eval_shape(lambda: with_bilm(module.init(jax.random.key(0), characters), bilm)),
        jax.eval_shape(lambda variables: with_bilm(variables, bilm), stored),
        with_bilm(abstract, bilm),
    ):
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), actual) == shapes
        assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(actual))
    apply = jax.jit(lambda variables: module.apply(with_bilm(variables, bilm), characters).mixes[0])
    assert_allclose(apply(stored), expected, atol=1e-5)


def test_a_traced_model_of_another_bilm_gives_nan_and_several_are_refused(bilm):
    characters, module = bilm.character_ids(SENTENCES), bilm.elmo()
    stored = jax.jit(module.init)(jax.random.key(0), characters)
    stored["elmo"]["fingerprint"] = stored["elmo"]["fingerprint"].at[0].add(1)
    apply = jax.jit(lambda variables: module.apply(with_bilm(variables, bilm), characters).mixes[0])
    assert np.isnan(apply(stored)[0, 0]).all()
    other = dataclasses.replace(bilm, fingerprint="ab" * 32)
    with pytest.raises(UserError, match="tell several biLMs apart, are not known; call elmo_jax.with_bilm outside of"):
        jax.eval_shape(lambda variables: with_bilm(variables, [bilm, other]), stored)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_bilm_on_devices_is_copied_to_the_default_device(bilm, devices):
    placed = bilm.on(jax.devices()[-devices:])
    for other in (copy.copy(placed), copy.deepcopy(placed), pickle.loads(pickle.dumps(placed))):
        assert other.devices == ()
        assert_allclose(other.embed(SENTENCES)[0], placed.embed(SENTENCES)[0], atol=1e-5)
    trainable = pickle.loads(pickle.dumps(placed.elmo(trainable=True)))
    params = jax.jit(trainable.init)(jax.random.key(0), bilm.character_ids(SENTENCES))["params"]["bilm"]
    jax.tree.map(assert_array_equal, params, {name: bilm.params[name] for name in params})


@contextlib.contextmanager
def strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.mark.parametrize("trainable", [True, pytest.param("lstms", marks=pytest.mark.slow)])
def test_a_trained_bilm_has_the_same_gradients_under_other_flags(bilm, trainable):
    characters = bilm.character_ids(SENTENCES)
    module = bilm.elmo(trainable=trainable, num_mixes=2, layer_norm="without_bos_eos")

    def loss(params):
        return sum((mix**2).mean() for mix in module.apply({"params": params}, characters).mixes)

    def gradients():
        params = jax.jit(module.init)(jax.random.key(0), characters)["params"]
        return jax.jit(jax.grad(lambda params: loss(params)))(params)

    plain = gradients()
    for context in (jax.enable_x64(True), strict()):
        with context:
            actual = gradients()
        assert {leaf.dtype for leaf in jax.tree.leaves(actual)} == {jnp.dtype("float32")}
        jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-5), actual, plain)


@pytest.mark.parametrize("level", ["disallow", "disallow_explicit"])
def test_transfers_may_be_forbidden(bilm, level):
    layers, vectors = bilm_of().embed(SENTENCES, state="warm_up")[0], bilm_of().words(["cat"])
    with jax.transfer_guard(level):
        assert_array_equal(bilm.embed(SENTENCES, state="warm_up")[0], layers)
        assert_array_equal(bilm_of().words(["cat"]), vectors)


def test_a_process_that_was_forked_after_computing_refuses(bilm):
    bilm.embed(SENTENCES)
    stored = bilm.elmo().init(jax.random.key(0), bilm.character_ids(SENTENCES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        refused = 0
        for compute in (
            lambda: bilm.embed(SENTENCES),
            lambda: bilm_of().words(["cat"]),
            lambda: with_bilm(stored, bilm),
            lambda: bilm.on(jax.devices()).embed(SENTENCES),
        ):
            try:
                compute()
            except UserError as error:
                refused += "forked after JAX had been used" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
