"""The licences: which texts are versions of one another, and what is written of each."""

from pathlib import Path

import numpy as np
import pytest

from licenses import documents, license_text, main, near_duplicates

LONG = " ".join(f"word{i}" for i in range(60))
OTHER = " ".join(f"other{i}" for i in range(60))


def changed(text: str, places: range) -> str:
    words = text.split()
    for position in places:
        words[position] = "changed"
    return " ".join(words)


def test_versions_are_one_cluster_and_other_texts_their_own() -> None:
    version = changed(LONG, range(30, 32))
    assert near_duplicates([LONG, OTHER, version, "an unrelated text that says something else"]) == [
        0,
        1,
        0,
        3,
    ]


def test_case_and_punctuation_play_no_part() -> None:
    assert near_duplicates([LONG, LONG.upper().replace(" ", ", ")]) == [0, 0]


def test_a_text_within_a_longer_one() -> None:
    """The short text is found whole, though it is a small part of the long one."""
    part = " ".join(LONG.split()[10:20])
    assert near_duplicates([OTHER, part, f"{OTHER} more", LONG]) == [0, 1, 0, 1]


def test_half_of_the_runs_of_the_shorter_text() -> None:
    """A text of 14 words has 10 runs of five; the two texts share only their first words."""
    words = LONG.split()[:14]
    shared = {n: [*words[:n], *(f"x{i}" for i in range(14 - n))] for n in (8, 9)}
    assert near_duplicates([" ".join(words), " ".join(shared[9])]) == [0, 0]  # 5 runs
    assert near_duplicates([" ".join(words), " ".join(shared[8])]) == [0, 1]  # 4 runs


def test_chains_are_one_cluster_by_whatever_order() -> None:
    words = [f"w{i}" for i in range(40)]
    chain = [" ".join(words[i : i + 20]) for i in (0, 5, 10, 15, 20)]  # the ends share no run
    assert near_duplicates([chain[0], chain[4]]) == [0, 1]
    for order in (range(5), (4, 0, 3, 1, 2), (0, 4, 2, 1, 3)):
        assert near_duplicates([chain[i] for i in order]) == [0] * 5


def test_texts_without_a_run_and_no_texts() -> None:
    assert near_duplicates(["", "", "four words and no", LONG]) == [0, 1, 2, 3]
    assert near_duplicates([]) == []


def test_the_order_of_words_counts() -> None:
    rng = np.random.default_rng(0)
    mixed = " ".join(rng.permutation(LONG.split()))
    assert near_duplicates([LONG, mixed]) == [0, 1]


HEADER = "---\nkey: mine\nnotes: not a word of this\n    --- nor of this\n{more}---\n"


@pytest.mark.parametrize(
    ("more", "text", "kept"),
    [
        ("language: fr\n", "Text.", ""),
        ("language: en\n", "Text.", "Text."),
        ("", "\nYou may use it.\n---\nAnd copy it.\n", "\nYou may use it.\n---\nAnd copy it.\n"),
    ],
)
def test_header_is_left_out(more: str, text: str, kept: str) -> None:
    assert license_text(HEADER.format(more=more) + text) == kept
    with pytest.raises(ValueError, match="expected a header"):
        license_text("You may use it.")


def test_versions_are_one_document() -> None:
    version = changed(LONG, range(30, 32))
    assert documents([LONG, OTHER, "Too short.", version]) == [f"{LONG}\n\n{version}\n\n", f"{OTHER}\n\n"]


@pytest.mark.slow
def test_the_package(tmp_path: Path) -> None:
    """All English texts are written, without their headers."""
    main(tmp_path / "out")
    texts = [path.read_text() for path in sorted((tmp_path / "out").iterdir())]
    assert 500 < len(texts) < 1000 and not any("spdx_license_key:" in text for text in texts)
    assert sum(len(text.split()) for text in texts) > 2_000_000
