"""Tests word sense disambiguation: class means, the nearest one by cosine, the fallback, scores and intervals."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.config import LSTMConfig, ModelConfig
from results import Vectors
from senses import Instance, SenseIndex, Sentence
from wsd import class_means, predict, right, score

PROJECTION, LAYERS = 3, 3  # P, L + 1
SIZE = PROJECTION * (1 + 2 * (LAYERS - 1))  # S
CONFIG = ModelConfig(lstm=LSTMConfig(projection=PROJECTION, layers=LAYERS - 1))
BANKS = [f"bank%1:14:0{number}::" for number in range(4)]
INDEX = SenseIndex(
    {key: number for number, key in enumerate(BANKS, 1)}
    | {"bank%2:40:00::": 1, "fish%2:35:01::": 1, "newt%1:05:00::": 2, "newt%1:06:00::": 1}
)


def sentence(number: int, words: int, *instances: tuple[int, int, str, str, tuple[str, ...]]) -> Sentence:
    return Sentence(tuple(f"{number}_{position}" for position in range(words)), tuple(Instance(*i) for i in instances))


# The verb "bank" and the third sense of the noun have no mean; other senses have one instance.
TRAINING = [
    sentence(0, 4, (0, 1, "bank", "NOUN", (BANKS[0],)), (2, 4, "bank", "NOUN", (BANKS[1],))),
    sentence(1, 3, (1, 2, "bank", "NOUN", (BANKS[0], BANKS[3]))),
    sentence(2, 2),
    sentence(3, 1, (0, 1, "fish", "VERB", ("fish%2:35:01::",))),
]
TESTS = [
    *(
        sentence(10 + n, 3, (0, 1, "bank", "NOUN", (BANKS[n % 4],)), (1, 3, "bank", "NOUN", (BANKS[3],)))
        for n in range(20)
    ),
    sentence(40, 4, (0, 1, "newt", "NOUN", ("newt%1:06:00::",)), (1, 2, "bank", "VERB", ("bank%2:40:00::",))),
    sentence(41, 1, (0, 1, "okapi", "NOUN", ("okapi%1:05:00::",))),
]


@pytest.fixture(scope="module")
def vectors() -> Vectors:
    random = np.random.default_rng(0)
    stored = {s.words: random.normal(size=(len(s.words), SIZE)).astype("f4") for s in [*TRAINING, *TESTS]}
    return Vectors(stored, CONFIG)


def layers_of(vectors: Vectors, words: tuple[str, ...], start: int, end: int) -> np.ndarray:
    """[L+1, 2P] float64, the mean of some words."""
    mean = vectors.stored[words][start:end].astype(np.float64).mean(0)
    token, rest = mean[:PROJECTION], mean[PROJECTION:]
    return np.stack([np.tile(token, 2), *rest.reshape(LAYERS - 1, 2 * PROJECTION)])


def expected_means(vectors: Vectors) -> dict[str, np.ndarray]:
    first, second = TRAINING[0].words, TRAINING[1].words
    shared = layers_of(vectors, second, 1, 2)
    return {
        BANKS[0]: (layers_of(vectors, first, 0, 1) + shared) / 2,
        BANKS[1]: layers_of(vectors, first, 2, 4),
        BANKS[3]: shared,
        "fish%2:35:01::": layers_of(vectors, TRAINING[3].words, 0, 1),
    }


def test_means_of_senses(vectors: Vectors) -> None:
    means, expected = class_means(vectors, TRAINING), expected_means(vectors)
    assert means.rows.keys() == expected.keys()
    assert means.directions.shape == (LAYERS, 4, 2 * PROJECTION)
    for key, mean in expected.items():
        unit = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        assert_allclose(means.directions[:, means.rows[key]], unit, atol=1e-5)


def test_the_nearest_mean_among_the_senses_of_the_lemma(vectors: Vectors) -> None:
    means = expected_means(vectors)
    actual, unseen = predict(INDEX, class_means(vectors, TRAINING), vectors, TESTS)
    assert len(actual) == LAYERS and unseen == 3
    candidates = [BANKS[0], BANKS[1], BANKS[3]]
    for layer, predictions in enumerate(actual):
        expected: list[str | None] = []
        for test in TESTS[:20]:
            for instance in test.instances:
                x = layers_of(vectors, test.words, instance.start, instance.end)[layer]
                cosines = [means[key][layer] @ x / np.linalg.norm(means[key][layer]) for key in candidates]
                expected.append(candidates[int(np.argmax(cosines))])
        # a lemma that the training text does not have; one with this part of speech; one that WordNet does not have
        assert predictions == [*expected, "newt%1:06:00::", "bank%2:40:00::", None]
        assert len(set(predictions[:40])) == 3
    assert actual[0] != actual[1] != actual[2]


def test_equal_cosines_give_the_more_frequent_sense() -> None:
    same = [sentence(0, 2, *((n, n + 1, "bank", "NOUN", (BANKS[1 - n],)) for n in range(2)))]
    vectors = Vectors({same[0].words: np.ones((2, SIZE), "f4")}, CONFIG)
    actual, unseen = predict(INDEX, class_means(vectors, same), vectors, same)
    assert actual == [[BANKS[0], BANKS[0]]] * LAYERS and unseen == 0


def test_any_of_the_keys_is_right() -> None:
    tests = [sentence(0, 2, (0, 1, "bank", "NOUN", (BANKS[1], BANKS[2])), (1, 2, "bank", "NOUN", (BANKS[0],)))]
    assert right([BANKS[2], BANKS[2]], tests).tolist() == [True, False]


def test_a_score_and_its_interval() -> None:
    values = np.arange(1000) % 10 < 7
    actual = score(values)
    assert actual.value == pytest.approx(70) and actual.instances == 1000
    spread = 1.96 * 100 * np.sqrt(0.7 * 0.3 / 1000)  # the standard deviation of the binomial distribution
    assert_allclose([actual.low, actual.high], [70 - spread, 70 + spread], atol=0.25)
    assert score(values) == actual and score(values[:100]).high - score(values[:100]).low > 2.5 * spread


def test_the_difference_of_two_systems_is_paired() -> None:
    lower = np.arange(500) % 2
    upper = lower.copy()
    upper[:50] = 1  # 25 more are right, and none is wrong that was right
    actual = score(upper - lower)
    assert actual.value == pytest.approx(5) and 2.5 < actual.low < 3.7 and 6.3 < actual.high < 7.5
    assert score(np.ones(7)) == (100, 100, 100, 7)
