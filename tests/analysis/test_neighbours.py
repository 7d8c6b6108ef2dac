"""Tests the nearest words of a text against a plain computation, and the command `neighbours`."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax import EmbeddingBiLM, UserError
from elmo_jax.analysis.neighbours import (
    Occurrence,
    nearest,
    nearest_uses,
    occurrence_in,
    occurrences,
    read_text,
)
from elmo_jax.cli import embed as command
from elmo_jax.data.prepare.options import TextOptions
from tests.analysis.texts import tiny_bilm, write_bilm

TEXT = """\
they saw a good play at the theatre
she made a play on the ball
she made a play on the ball
the bank of the river is green
no play at all , no play
fish
"""
SENTENCES = [tuple(line.split()) for line in TEXT.splitlines()]
DISTINCT = list(dict.fromkeys(SENTENCES))


@pytest.fixture(scope="module")
def bilm() -> EmbeddingBiLM:
    return tiny_bilm()


def plain(bilm: EmbeddingBiLM, query: Occurrence, layer: int) -> list[tuple[float, Occurrence]]:
    """Returns all words of other sentences with their cosines in float64, nearest first."""

    def vector(words: tuple[str, ...], place: int) -> np.ndarray:
        actual = bilm.embed([words])[0][0, layer, place].astype(np.float64)
        return actual / np.linalg.norm(actual)

    asked = vector(*query)
    actual = [
        (float(asked @ vector(words, place)), Occurrence(words, place))
        for words in DISTINCT
        if words != query.words
        for place in range(len(words))
    ]
    return sorted(actual, key=lambda pair: -pair[0])


@pytest.mark.parametrize("layer", [1, 2])
def test_the_nearest_words(tmp_path: Path, bilm: EmbeddingBiLM, layer: int) -> None:
    queries = [*occurrences(SENTENCES, "play")[:2], occurrence_in(("my", "play"), "play")]
    actual = nearest(tmp_path, bilm, SENTENCES, queries, 5, layer)
    for query, neighbours in zip(queries, actual, strict=True):
        expected = plain(bilm, query, layer)[:5]
        assert [neighbour.occurrence for neighbour in neighbours] == [occurrence for _, occurrence in expected]
        # the text's vectors are float16
        assert_allclose([neighbour.cosine for neighbour in neighbours], [cosine for cosine, _ in expected], atol=2e-3)


def test_a_text_with_few_words(tmp_path: Path, bilm: EmbeddingBiLM) -> None:
    query = occurrence_in(("fish", "play"), "play")
    (actual,) = nearest(tmp_path, bilm, [("fish",), ("a", "ball")], [query], 10)
    assert sorted(neighbour.occurrence.word for neighbour in actual) == ["a", "ball", "fish"]


def test_a_layer_that_there_is_not(tmp_path: Path, bilm: EmbeddingBiLM) -> None:
    with pytest.raises(UserError, match="layer 3: expected 0 to 2"):
        nearest(tmp_path, bilm, SENTENCES, occurrences(SENTENCES, "play"), 5, 3)


def test_words_around() -> None:
    query = occurrences(SENTENCES, "play")[0]
    assert (query.word, query.position) == ("play", 4)
    assert query.shown(2) == "… a good [play] at the …"
    assert query.shown(4) == "they saw a good [play] at the theatre"
    assert [use.position for use in occurrences(SENTENCES[4:5], "play")] == [1, 6]
    with pytest.raises(UserError, match="the word 'Play' is not in the sentence: 'no play'"):
        occurrence_in(("no", "play"), "Play")


def test_equal_sentences_are_asked_once() -> None:
    assert len(occurrences([("a", "play"), ("a", "play"), ("play", "on")], "play")) == 2


def test_running_text_is_tokenized(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("It rains. We stay, all of us, at home.\n")
    assert read_text(str(tmp_path / "text.txt"), TextOptions()) == [
        ("It", "rains", "."),
        ("We", "stay", ",", "all", "of", "us", ",", "at", "home", "."),
    ]
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(UserError, match="has no words"):
        read_text(str(tmp_path / "empty.txt"), TextOptions())


def run(*arguments: str | Path) -> int:
    """The command, as `elmo-jax` calls it."""
    parser = argparse.ArgumentParser()
    command.add_command(parser.add_subparsers())
    options = parser.parse_args(["neighbours", *map(str, arguments)])
    status: int = options.run(options)
    return status


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Writes a biLM and a text."""
    folder = tmp_path_factory.mktemp("neighbours")
    (folder / "text.txt").write_text(TEXT)
    return write_bilm(folder / "bilm"), folder / "text.txt"


def test_the_command(
    files: tuple[Path, Path], bilm: EmbeddingBiLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ["--word", "play", "--occurrences", "2", "--number", "3", "--around", "2", "--cache", tmp_path / "cache"]
    assert run(*files, *wanted) == 0
    printed = capsys.readouterr().out
    expected = []
    for query in occurrences(SENTENCES, "play")[:2]:
        near = plain(bilm, query, 2)[:3]
        expected += ["", query.shown(2), *(f"  {cosine:.3f}  {occurrence.shown(2)}" for cosine, occurrence in near)]
    for line, wanted_line in zip(printed.splitlines(), expected, strict=True):
        assert line.split()[1:] == wanted_line.split()[1:]
    assert list((tmp_path / "cache").glob("*.layers"))
    assert run(*files, "--word", "play", "--sentence", "a play by her", "--number", "1") == 0
    assert capsys.readouterr().out.startswith("\na [play] by her\n  ")
    both = ["--sentence", "a play by her", "--sentence", "they play"]
    assert run(*files, "--word", "play", *both, "--number", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [lines[n] for n in (0, 1, 3, 4)] == ["", "a [play] by her", "", "they [play]"] and len(lines) == 6
    (tmp_path / "one.txt").write_text("a play by her\n")
    for among, what in (("words", "no word"), ("uses", "no use of the word")):
        assert run(files[0], tmp_path / "one.txt", "--word", "play", "--format", "lines", "--among", among) == 0
        assert f"  the text has {what} outside this sentence\n" in capsys.readouterr().out


def test_uses_of_a_word_are_its_neighbours_among_the_words(bilm: EmbeddingBiLM, tmp_path: Path) -> None:
    """The same cosines as among all words, for the same word only, in capitals or not."""
    queries = occurrences(SENTENCES, "play")[:2]
    everything = nearest(tmp_path, bilm, SENTENCES, queries, sum(map(len, SENTENCES)))
    actual = nearest_uses(bilm, SENTENCES, queries, 3)
    for near, among_all in zip(actual, everything, strict=True):
        expected = [other for other in among_all if other.occurrence.word.lower() == "play"][:3]
        assert near and [other.occurrence for other in near] == [other.occurrence for other in expected]
        np.testing.assert_allclose([o.cosine for o in near], [o.cosine for o in expected], atol=1e-3)
    with pytest.raises(UserError, match="layer 3: expected 0 to 2"):
        nearest_uses(bilm, SENTENCES, queries, 3, layer=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--word", "okapi"], "the word 'okapi' is not in the text; give a --sentence with it"),
        (["--word", "play", "--sentence", "no game"], "the word 'play' is not in the sentence: 'no game'"),
        (["--word", "play", "--layer", "4"], "layer 4: expected 0 to 2"),
        (["--word", "play", "--layer", "4", "--among", "uses"], "layer 4: expected 0 to 2"),
    ],
)
def test_a_mistake_is_one_line(files: tuple[Path, Path], arguments: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        run(*files, *arguments)
    assert message in str(error.value) and "\n" not in str(error.value)
