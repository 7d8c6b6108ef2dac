"""Tests the cache of word vectors, also with several threads."""

from __future__ import annotations

import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax import EmbeddingBiLM
from elmo_jax.embedding.word_cache import WordVectors
from tests.embedding.small_bilm import bilm_of


@pytest.fixture(scope="module")
def bilm() -> EmbeddingBiLM:
    return bilm_of()


def test_each_distinct_word_is_encoded_once_within_bounds(bilm):
    cache = WordVectors(bilm.model, bilm._placed("token_encoder"), capacity=5)
    plain = bilm.words.encode([f"v{i}" for i in range(9)])
    found = cache(["v0", "v1", "v0", "v1"])
    assert cache.encoded == 2 and len(cache) == 2
    assert_allclose(found, plain[[0, 1, 0, 1]], atol=1e-6)
    cache(["v0", "v2", "v3", "v4"])
    assert cache.encoded == 5 and len(cache) == 5
    cache(["v1", "v0"])
    assert cache.encoded == 5
    cache(["v5"])  # v2, the least recently used one, is dropped
    cache(["v0", "v1", "v3", "v4", "v5"])
    assert cache.encoded == 6 and len(cache) == 5
    assert_allclose(cache([f"v{i}" for i in range(9)]), plain, atol=1e-6)  # more words at once than it keeps
    assert len(cache) == 5
    assert_allclose(cache([f"v{i}" for i in range(9)]), plain, atol=1e-6)


def test_the_store_of_vectors_is_not_copied_and_takes_memory_as_it_fills(bilm):
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    before = resident()
    cache = WordVectors(bilm.model, bilm._placed("token_encoder"), capacity=1 << 21)
    store = cache._store
    assert store.nbytes > 1 << 25 and resident() - before < store.nbytes / 2
    for i in range(40):
        cache([f"v{i}"])
    assert cache._store is store


def with_threads(number, job):
    """Runs `job(thread)` in several threads that begin together and change places as often as possible."""
    begin, interval = threading.Barrier(number), sys.getswitchinterval()

    def run(thread):
        begin.wait()
        return job(thread)

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(number) as pool:
            return list(pool.map(run, range(number)))
    finally:
        sys.setswitchinterval(interval)


def test_eight_threads_share_the_cache_of_words(bilm, monkeypatch):
    """The vector of a word is its number, so that a vector of another word cannot go unnoticed."""
    monkeypatch.setattr(
        WordVectors, "encode", lambda self, words: np.array([[int(word)] * self._size for word in words], np.float32)
    )
    cache = WordVectors(bilm.model, bilm._placed("token_encoder"), capacity=20)

    def wrong(thread):
        random, found = np.random.default_rng(thread), 0
        for _ in range(300):
            words = random.integers(0, 40, 12)
            found += not np.array_equal(cache([str(word) for word in words])[:, 0], words)
        return found

    assert sum(with_threads(8, wrong)) == 0
    assert len(cache) == 20 and sorted(cache._rows.values()) == list(range(20))  # no row is lost or held twice


def test_eight_threads_get_the_vectors_of_their_own_sentences(bilm, monkeypatch):
    monkeypatch.setitem(bilm.__dict__, "words", WordVectors(bilm.model, bilm._placed("token_encoder"), capacity=30))
    batches = [[[f"t{(thread * 7 + i) % 60}" for i in range(length)] for length in (9, 4)] for thread in range(8)]
    expected = [bilm.embed(batch)[0] for batch in batches]

    def largest_error(thread):
        return max(float(np.abs(bilm.embed(batches[thread])[0] - expected[thread]).max()) for _ in range(10))

    assert max(with_threads(8, largest_error)) < 1e-5
