"""Which texts are versions of one another."""

import numpy as np

from elmo_jax.data.samples.near_duplicates import near_duplicates

LONG = " ".join(f"word{i}" for i in range(60))
OTHER = " ".join(f"other{i}" for i in range(60))


def changed(text: str, places: range) -> str:
    words = text.split()
    for place in places:
        words[place] = "changed"
    return " ".join(words)


def test_versions_are_one_cluster_and_other_texts_their_own() -> None:
    version = changed(LONG, range(30, 32))
    assert near_duplicates([LONG, OTHER, version, "an unrelated text that says something else"]).tolist() == [
        0,
        1,
        0,
        3,
    ]


def test_case_and_punctuation_play_no_part() -> None:
    assert near_duplicates([LONG, LONG.upper().replace(" ", ", ")]).tolist() == [0, 0]


def test_a_text_within_a_longer_one() -> None:
    """The short text is found whole, though it is a small part of the long one."""
    part = " ".join(LONG.split()[10:20])
    assert near_duplicates([OTHER, part, f"{OTHER} more", LONG]).tolist() == [0, 1, 0, 1]


def test_half_of_the_runs_of_the_shorter_text() -> None:
    """A text of 14 words has 10 runs of five; the two texts share only their first words."""
    words = LONG.split()[:14]
    shared = {n: [*words[:n], *(f"x{i}" for i in range(14 - n))] for n in (8, 9)}
    assert near_duplicates([" ".join(words), " ".join(shared[9])]).tolist() == [0, 0]  # 5 runs
    assert near_duplicates([" ".join(words), " ".join(shared[8])]).tolist() == [0, 1]  # 4 runs


def test_chains_are_one_cluster_by_whatever_order() -> None:
    words = [f"w{i}" for i in range(40)]
    chain = [" ".join(words[i : i + 20]) for i in (0, 5, 10, 15, 20)]  # the ends share no run
    assert near_duplicates([chain[0], chain[4]]).tolist() == [0, 1]
    for order in (range(5), (4, 0, 3, 1, 2), (0, 4, 2, 1, 3)):
        assert near_duplicates([chain[i] for i in order]).tolist() == [0] * 5


def test_texts_without_a_run_and_no_texts() -> None:
    assert near_duplicates(["", "", "four words and no", LONG]).tolist() == [0, 1, 2, 3]
    assert near_duplicates([]).tolist() == []


def test_the_order_of_words_counts() -> None:
    rng = np.random.default_rng(0)
    mixed = " ".join(rng.permutation(LONG.split()))
    assert near_duplicates([LONG, mixed]).tolist() == [0, 1]
