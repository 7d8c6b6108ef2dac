"""Tests the table of word vectors, also with several threads."""

from __future__ import annotations

import dataclasses
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from numpy.testing import assert_allclose

from elmo_jax import EmbeddingBiLM, UserError
from elmo_jax.distributed.mesh import REPLICATED, make_mesh
from elmo_jax.embedding import word_table
from elmo_jax.embedding.word_table import WordTable
from tests.embedding.small_bilm import bilm_of


@pytest.fixture(scope="module")
def bilm() -> EmbeddingBiLM:
    return bilm_of()


def table_of(bilm: EmbeddingBiLM, capacity: int) -> WordTable:
    mesh = make_mesh(jax.devices()[:1])
    params = jax.device_put({"token_encoder": bilm.params["token_encoder"]}, NamedSharding(mesh, REPLICATED))
    return WordTable(bilm.model, params, mesh, capacity)


def test_each_distinct_word_is_encoded_once_within_bounds(bilm):
    table, plain = table_of(bilm, 5), bilm.words([f"v{i}" for i in range(9)])
    vectors = table(["v0", "v1", "v0", "v1"])
    assert table.encoded == 2 and len(table) == 2
    assert_allclose(vectors, plain[[0, 1, 0, 1]], atol=1e-5)
    table(["v0", "v2", "v3", "v4"])
    assert table.encoded == 5 and len(table) == 5
    table(["v1", "v0"])
    assert table.encoded == 5
    table(["v5"])  # v2, v3 or v4 is dropped
    table(["v0", "v1", "v5"])
    assert table.encoded == 6 and len(table) == 5
    assert_allclose(table([f"v{i}" for i in range(9)]), plain, atol=1e-5)  # more words at once than it keeps
    assert len(table) == 5
    assert_allclose(table([f"v{i}" for i in range(9)]), plain, atol=1e-5)


def test_a_word_that_cannot_be_encoded_leaves_the_table_as_it_was(bilm):
    table = table_of(bilm, 8)
    table(["v0", "v1"])
    with pytest.raises(UserError, match="half of a surrogate pair"):
        table(["v2", "\ud800"])
    assert len(table) == table.encoded == 2
    assert_allclose(table(["v1", "v2"]), bilm.words(["v1", "v2"]), atol=1e-5)


def test_more_distinct_words_than_the_table_has_rows_are_refused(bilm):
    bilm = dataclasses.replace(bilm)
    table = bilm.engine.words = table_of(bilm, 6)
    for words in (4, 6):  # with the two sentence boundaries
        sentences = [[f"v{i}" for i in range(words)]]
        if words == 4:
            expected, _, _ = bilm.embed(sentences)
        else:
            with pytest.raises(UserError, match="a sentence has more than 6 distinct words; divide it"):
                bilm.embed(sentences)
    assert_allclose(bilm.embed([["v0", "v1", "v2", "v3"]])[0], expected, atol=1e-5)
    with pytest.raises(UserError, match="more than 6 distinct words"):
        table.rows([f"new{i}" for i in range(7)])


def test_an_interrupted_call_does_not_mistake_words_for_others(bilm, monkeypatch):
    table, words = table_of(bilm, 600), [f"v{i}" for i in range(600)]
    expected, encode, calls = table(words), word_table._encode, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return encode(*arguments)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt), table.lock:
        patched.setattr(word_table, "_encode", interrupted)
        table.rows([f"new{i}" for i in range(600)])  # which overwrite the rows of the others
    for _ in range(2):
        assert_allclose(table(words), expected, atol=1e-5)
    assert len(table) == 600


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


def test_eight_threads_share_the_table_of_words(bilm):
    words = [f"v{i}" for i in range(40)]
    table, expected = table_of(bilm, 22), bilm.words(words)

    def largest_error(thread):
        random, error = np.random.default_rng(thread), 0.0
        for _ in range(30):
            chosen = random.integers(0, 40, 12)
            error = max(error, float(np.abs(table([words[i] for i in chosen]) - expected[chosen]).max()))
        return error

    assert max(with_threads(8, largest_error)) < 1e-5
    assert len(table) == 22


def test_eight_threads_get_the_vectors_of_their_own_sentences(bilm):
    bilm = dataclasses.replace(bilm)
    bilm.engine.words = table_of(bilm, 40)
    batches = [[[f"t{(thread * 7 + i) % 60}" for i in range(length)] for length in (9, 4)] for thread in range(8)]
    expected = [bilm.embed(batch)[0] for batch in batches]

    def largest_error(thread):
        return max(float(np.abs(bilm.embed(batches[thread])[0] - expected[thread]).max()) for _ in range(10))

    assert max(with_threads(8, largest_error)) < 1e-5
