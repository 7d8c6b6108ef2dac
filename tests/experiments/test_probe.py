"""The linear classifier: what it can learn, which epoch is taken, and what its accuracy counts."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import pytest

import probe
from probe import UNKNOWN, Recipe, Words, classes, train

FEATURES, CLASSES, MIXED = 5, 3, 2
RECIPE = Recipe(batch_size=32, learning_rate=3e-2, epochs=20, patience=4)


def words(number: int, seed: int, informative: int = 0) -> Words:
    """Classes that are a linear function of one of the layers; the other layers are noise of ten times its size."""
    random = np.random.default_rng(seed)
    truth = np.random.default_rng(7).normal(size=(FEATURES, CLASSES))
    x = random.normal(size=(number, MIXED, FEATURES)).astype(np.float16)
    y = (x[:, informative].astype("f4") @ truth).argmax(-1)
    x[:, 1 - informative] *= 10
    return Words(jnp.asarray(x), jnp.asarray(y, jnp.int32))


@pytest.fixture(scope="module")
def parts() -> list[Words]:
    return [words(500, 0), words(100, 1), words(100, 2)]


def seen(parts: list[Words], layer: int) -> list[Words]:
    return [Words(x[:, layer : layer + 1], y) for x, y in parts]


def test_it_learns_what_is_linear_in_its_layer(parts: list[Words]) -> None:
    informative, noise = (train(seen(parts, layer), CLASSES, RECIPE, 0) for layer in (0, 1))
    assert min(informative.dev, informative.test) > 93 and informative.epoch > 1
    assert noise.test < 60


def test_a_mix_finds_the_layer_that_helps(parts: list[Words]) -> None:
    halves = [Words((x[:, :1] + x[:, 1:]) / 2, y) for x, y in parts]
    assert train(parts, CLASSES, RECIPE, 0).test > train(halves, CLASSES, RECIPE, 0).test + 10


def test_a_seed_draws_the_order(parts: list[Words]) -> None:
    few = RECIPE._replace(epochs=2)
    actual = [train(seen(parts, 0), CLASSES, few, seed) for seed in (0, 0, 1, 2)]
    assert actual[0] == actual[1] and len(set(actual)) > 1


def test_the_epoch_is_chosen_by_dev_and_patience_ends_it(parts: list[Words], monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies: Iterator[float] = iter([50.0, 10.0, 60.0, 11.0, 60.0, 58.0, 61.0, 12.0, 60.0, 60.0, 60.0, 60.0])
    monkeypatch.setattr(probe, "_accuracy", lambda params, words: next(accuracies))
    # The accuracies are dev 50 and test 10; dev 60 and test 11; dev 60; dev 58; dev 61 and test 12; then dev 60 to the
    # end.
    actual = train(seen(parts, 0), CLASSES, RECIPE, 0)
    assert actual == (61.0, 12.0, 5) and list(accuracies) == []
    accuracies = iter(map(float, range(100)))  # rising, so only the number of epochs ends it
    assert train(seen(parts, 0), CLASSES, RECIPE._replace(epochs=3), 0) == (4.0, 5.0, 3)


def test_accuracy_counts_every_word(parts: list[Words], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_EVALUATED", 32)  # and the rest
    x, y = seen(parts, 0)[1]
    params = {"mix": jnp.zeros(1), "kernel": jnp.zeros((FEATURES, CLASSES)), "bias": jnp.array([0.0, 1.0, 0.0])}
    assert probe._accuracy(params, Words(x, y)) == pytest.approx(100 * float((np.asarray(y) == 1).mean()))
    unknown = jnp.where(jnp.arange(len(y)) < 50, UNKNOWN, 1)
    assert probe._accuracy(params, Words(x, unknown)) == 50


def test_tags_are_those_of_the_training_set() -> None:
    names, numbers = classes([["NN", "DT", "NN"], ["DT", "VB"], []])
    assert names == ["DT", "NN"]
    assert [item.tolist() for item in numbers] == [[1, 0, 1], [0, UNKNOWN], []]


def test_fewer_words_than_a_batch(parts: list[Words]) -> None:
    few = [Words(x[:5], y[:5]) for x, y in seen(parts, 0)]
    assert train(few, CLASSES, RECIPE._replace(batch_size=64), 0).epoch >= 1
