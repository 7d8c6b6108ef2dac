"""Tests ELMo inside lifted transforms, two biLMs in one model, and arrays that are not what ELMo reads."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import elmo_jax
from elmo_jax import UserError, with_bilm
from elmo_jax.model.scalar_mix import ScalarMix
from tests.model.elmo_modules import SENTENCES, bilm_of


@pytest.fixture(scope="module")
def bilm():
    return bilm_of()


@pytest.fixture(scope="module")
def characters(bilm):
    return bilm.character_ids(SENTENCES)


class Body(nn.Module):
    elmo: elmo_jax.ELMo

    @nn.compact
    def __call__(self, carry, characters):
        return carry, self.elmo(characters).mixes[0]


class Lifted(nn.Module):
    """ELMo over some batches [N, B, T, W], in one of the lifted transforms."""

    elmo: elmo_jax.ELMo
    how: str
    lifted: tuple[str, ...] = ("params", "elmo", "bilm")

    @nn.compact
    def __call__(self, batches):
        elmo, rngs = self.elmo, {"params": False}
        if self.how == "remat":
            return jnp.stack([nn.remat(Body)(elmo, name=f"body_{i}")(0, one)[1] for i, one in enumerate(batches)])
        if self.how == "scan":
            return nn.scan(Body, variable_broadcast=self.lifted, split_rngs=rngs)(elmo)(0, batches)[1]
        axes = dict.fromkeys(self.lifted) | ({"params": 0, "elmo": 0} if self.how == "stacked" else {})
        return nn.vmap(Body, in_axes=(None, 0), out_axes=(None, 0), variable_axes=axes, split_rngs=rngs)(elmo)(
            0, batches
        )[1]


@pytest.mark.parametrize("how", ["remat", "scan", "vmap", "stacked"])
def test_lifted_transforms(bilm, characters, how):
    batches = np.stack([characters, characters[::-1]])
    model = Lifted(bilm.elmo(), how)
    variables = with_bilm(jax.jit(model.init)(jax.random.key(0), batches), bilm)
    actual = jax.jit(model.apply)(variables, batches)
    plain = bilm.elmo()
    expected = jax.jit(plain.apply)(with_bilm(jax.jit(plain.init)(jax.random.key(0), characters), bilm), characters)
    assert_allclose(actual, np.stack([expected.mixes[0], expected.mixes[0][::-1]]), atol=1e-5)


@pytest.mark.parametrize("how", ["scan", "vmap"])
def test_a_collection_that_is_not_lifted_is_named(bilm, characters, how):
    batches = np.stack([characters, characters])
    model = Lifted(bilm.elmo(), how, ("params", "elmo"))
    variables = with_bilm(model.init(jax.random.key(0), batches), bilm)
    with pytest.raises(ValueError, match=r"no biLM here: .* must lift the collections 'params', 'elmo' and 'bilm'"):
        model.apply(variables, batches)
    with pytest.raises(UserError, match=r"no collection 'elmo'; .* must lift the collections 'params', 'elmo' and"):
        with_bilm({"params": variables["params"]}, bilm)
    with pytest.raises(ValueError, match=r"'elmo' is not made here: .* must lift the collections 'params', 'elmo' and"):
        Lifted(bilm.elmo(), how, ("params",)).init(jax.random.key(0), batches)


class Two(nn.Module):
    first: elmo_jax.ELMo
    second: elmo_jax.ELMo

    def __call__(self, characters):
        return self.first(characters).mixes[0], self.second(characters).mixes[0]


def test_two_bilms_in_one_model(bilm, characters):
    other = bilm_of(seed=3)
    model = Two(bilm.elmo(), other.elmo())
    stored = jax.jit(model.init)(jax.random.key(0), characters)
    actual = jax.jit(model.apply)(with_bilm(stored, [other, bilm]), characters)
    for mixed, one in zip(actual, (bilm, other), strict=True):
        layers, mask, _ = one.embed(SENTENCES)
        assert_allclose(mixed, layers.mean(1) * mask[..., None], atol=1e-5)
    with pytest.raises(UserError, match="the model was made with another biLM"):
        with_bilm(stored, bilm)
    with pytest.raises(UserError, match="cache: expected one per biLM, got 1 for 2"):
        with_bilm(stored, [other, bilm], [None])


def test_arrays_that_are_not_what_is_read(bilm, characters):
    module = bilm.elmo()
    variables = with_bilm(jax.jit(module.init)(jax.random.key(0), characters), bilm)
    for wrong, message in [
        (SENTENCES, r"characters: expected an array of whole numbers \[B, T, W\], as .*character_ids.*, got a list"),
        (characters.tolist(), "characters: expected an array .* got a list"),
        (characters.astype(np.float32), r"characters: expected an array .* got float32 \(4, "),
        (characters > 0, "characters: expected an array .* got bool"),
        (characters[0], "characters: expected an array .* got int32"),
        (characters.astype(np.uint8), "characters: uint8 does not hold ids up to 261; use int32"),
        (characters * 2, "characters: expected ids from 0 to 261, got 0 to 5"),
        (characters - 1, "characters: expected ids from 0 to 261, got -1 to 260"),
    ]:
        with pytest.raises(UserError, match=message):
            module.apply(variables, wrong)
    for value in (262, -1):  # of one character of one word
        wrong = characters.copy()
        wrong[0, 1, 2] = value
        mixed = np.asarray(jax.jit(module.apply)(variables, wrong).mixes[0])
        assert np.isnan(mixed[0]).any() and np.isfinite(mixed[1:]).all()
    wrong = characters.copy()
    wrong[0, 0] = 0  # before a word
    with pytest.raises(UserError, match="zeros before a word: they mark the end of a sentence"):
        module.apply(variables, wrong)
    mixed = np.asarray(jax.jit(module.apply)(variables, wrong).mixes[0])
    assert np.isnan(mixed[0, 1]).all() and np.isfinite(mixed[1:]).all()
    layers, mask, _ = bilm.embed(SENTENCES)
    with pytest.raises(UserError, match=r"layers \(\) and mask .*: expected arrays \[B, 3, T, 10\]"):
        module.apply(variables, layers.tolist(), mask, method="mix")
    mix = ScalarMix()
    with pytest.raises(UserError, match=r"vectors: expected an array of numbers \[B, N, T, D\], got a list"):
        mix.init(jax.random.key(0), list(layers), mask)
    with pytest.raises(UserError, match=r"mask: expected an array of truth values \[B, T\], got a list"):
        mix.init(jax.random.key(0), layers, mask.tolist())
