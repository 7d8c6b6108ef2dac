"""Tests the ELMo module with cached words, and what it refuses."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

import elmo_jax
from elmo_jax import (
    CachedWords,
    UserError,
    add_bilm,
    character_ids,
    with_bilm,
)
from tests.model.elmo_modules import SENTENCES, SIZE, bilm_of, made, run


@pytest.fixture(scope="module")
def bilm() -> elmo_jax.EmbeddingBiLM:
    return bilm_of()


@pytest.fixture(scope="module")
def characters() -> np.ndarray:
    return character_ids(SENTENCES, SIZE)


def test_cached_words_and_characters_for_the_others(bilm, characters):
    module, variables = made(bilm, characters)
    expected = run(module, variables, characters).mixes[0]
    known = ["the", "unseen", "…"]  # the first and the last row are used
    for cache in (CachedWords(known, bilm.words(known), SIZE), CachedWords([], np.zeros((0, 5)), SIZE)):
        encoded, words = cache(SENTENCES)
        assert len(encoded) == len(
            {word for sentence in SENTENCES for word in sentence} - set(known[: len(cache.vectors)])
        )
        out = run(module, with_bilm(variables, bilm, cache), encoded, words)
        assert_allclose(out.mixes[0], expected, atol=1e-5)
    wide, more = cache(SENTENCES, rows=6, steps=9, others=12)  # one shape for all batches
    assert wide.shape == (12, SIZE) and more.shape == (6, 9)
    padded = run(module, with_bilm(variables, bilm, cache), wide, more)
    assert_allclose(padded.mixes[0][:4, :5], expected, atol=1e-5)
    assert not np.any(padded.mixes[0][4:]) and not np.any(padded.mask[4:])
    # the vectors do come from the cache
    other = CachedWords(known, bilm.words(known) + 1, SIZE)
    moved = run(module, with_bilm(variables, bilm, other), *other(SENTENCES)).mixes[0]
    assert np.abs(moved - expected)[0].max() > 0.01 and np.abs(moved - expected)[3].max() < 1e-5


def test_characters_of_another_width_are_refused(bilm, characters):
    module, variables = made(bilm, characters)
    assert_array_equal(bilm.character_ids(SENTENCES), characters)
    for width in (50, 2 * SIZE):  # 2 * SIZE can be reshaped to twice as many words without an error
        wide = character_ids(SENTENCES, width)
        with pytest.raises(UserError, match=f"characters: {width} per word, but this biLM reads {SIZE}; make them"):
            run(module, variables, wide)
        with pytest.raises(UserError, match=f"characters: {width} per word"):
            module.init(jax.random.key(0), wide)
        cache = CachedWords(["the"], bilm.words(["the"]), width)
        with pytest.raises(UserError, match=f"characters: {width} per word"):
            run(module, variables, *cache(SENTENCES))
        with pytest.raises(UserError, match=f"cache: max_characters is {width}, expected {SIZE}"):
            with_bilm(variables, bilm, cache)


def test_another_number_of_caches_than_of_biLMs_is_refused(bilm, characters):
    _, variables = made(bilm, characters)
    for bilms, caches in (([bilm], [None, None]), ([bilm, bilm], [None]), ([], [])):
        with pytest.raises(UserError, match=f"cache: expected one per biLM, got {len(caches)} for {len(bilms)}"):
            with_bilm(variables, bilms, caches)


def test_words_without_their_cache_are_refused_or_nan(bilm, characters):
    module, variables = made(bilm, characters)
    known = ["the", "…"]
    cache = CachedWords(known, bilm.words(known), SIZE)
    encoded, words = cache(SENTENCES)
    shorter = CachedWords(known[:1], bilm.words(known[:1]), SIZE)
    for without, row in ((variables, "row 2 of the cache, .* 0 rows"), (with_bilm(variables, bilm, shorter), "1 rows")):
        out = run(module, without, encoded, words)
        lost = np.array([row > 0 for row in words.max(1)]) if without is variables else words.max(1) > 1
        assert lost.any() and not lost.all()
        assert np.isnan(np.asarray(out.mixes[0])[lost]).any(-1).any(-1).all()  # no vector of another word
        assert np.isfinite(np.asarray(out.mixes[0])[~lost]).all()
        with pytest.raises(UserError, match=f"words: {row}" if without is variables else row):
            module.apply(without, encoded, words)
    actual = with_bilm(variables, bilm, cache)
    with pytest.raises(UserError, match=r"words: row \d+ of characters, which have 1 rows"):
        module.apply(actual, encoded[:1], words)
    assert np.isnan(np.asarray(run(module, actual, encoded[:1], words).mixes[0])).any()


def test_wrong_arguments(bilm, characters):
    for vectors in (np.zeros(1), np.zeros((2, 5))):
        with pytest.raises(UserError, match=r"1 words for vectors of shape .*; expected \[N, P\]"):
            CachedWords(["a"], vectors)
    stored = jax.jit(bilm.elmo().init)(jax.random.key(0), characters)
    with pytest.raises(UserError, match="bilm: expected what elmo_jax.load_bilm returns, got dict"):
        with_bilm(bilm, stored)


def test_a_cache_of_another_bilm_is_refused(bilm, characters):
    module = bilm.elmo()
    variables = jax.jit(module.init)(jax.random.key(0), characters)
    other = bilm_of(seed=5)
    cache = CachedWords(["the"], other.words(["the"]), SIZE, other.vectors_fingerprint)
    known = other.vectors_fingerprint[:12]
    message = f"cache: the vectors are of another biLM: its fingerprint is {known}…, this one's"
    with pytest.raises(UserError, match=message):
        with_bilm(variables, bilm, cache)
    with pytest.raises(UserError, match=message):
        add_bilm(nnx.bridge.ToNNX(bilm.elmo(), rngs=nnx.Rngs(0)).lazy_init(characters), bilm, cache)
    cache = CachedWords(["the"], bilm.words(["the"]), SIZE, bilm.vectors_fingerprint)
    assert "cache" in with_bilm(variables, bilm, cache)["bilm"]
