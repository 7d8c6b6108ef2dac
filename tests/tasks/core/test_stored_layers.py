"""Layers kept on disk: the numbers of `embed`, and what a later process need not embed again."""

from __future__ import annotations

import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from elmo_jax import EmbeddingBiLM, UserError
from elmo_jax.embedding.shards import DamagedFile, Shard
from elmo_jax.tasks.core import elmo_vectors
from elmo_jax.tasks.core.elmo_vectors import Computed, LayerCache, make
from tests.analysis.texts import CONFIG, tiny_bilm

SENTENCES = [
    tuple(text.split())
    for text in ("the old boat", "fish", "the bank of the river is green", "the old boat", "a boat sinks", "it waits")
]
WORDS = sum(map(len, SENTENCES))


@pytest.fixture(scope="module")
def bilm() -> EmbeddingBiLM:
    return tiny_bilm()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes files small, so that there are several."""
    monkeypatch.setattr(elmo_vectors, "WORDS_PER_FILE", 3)


def plain(bilm: EmbeddingBiLM) -> np.ndarray:
    """Returns the vectors [N, L+1, 2P] of all words, computed one sentence at a time."""
    return np.concatenate([bilm.embed([words])[0][0].swapaxes(0, 1) for words in SENTENCES])


def layers_of(made: Computed) -> np.ndarray:
    """Returns the layers [N, L+1, 2P] of all words that are on disk."""
    stored = LayerCache(made.files)
    layers = [elmo_vectors.unpack_layers(stored[words][None], CONFIG, np)[0] for words in SENTENCES]
    return np.concatenate(layers, axis=1).swapaxes(0, 1)


def assert_equal_in_float16(stored: np.ndarray, expected: np.ndarray) -> None:
    """Vectors of two batches differ a little, so that a number may be rounded up in one and down in the other."""
    assert_array_equal(stored, stored.astype(np.float16))
    assert_allclose(stored, expected, rtol=2**-11, atol=2e-5)


def test_stored_layers_are_those_of_embed(tmp_path: Path, bilm: EmbeddingBiLM) -> None:
    made = make(tmp_path, bilm, SENTENCES, "float32")
    assert len(made.files) == 5
    assert_allclose(layers_of(made), plain(bilm), atol=1e-5)
    numbers = LayerCache(made.files)[SENTENCES[0]][None]
    assert_array_equal(
        elmo_vectors.unpack_layers(jnp.asarray(numbers), CONFIG), elmo_vectors.unpack_layers(numbers, CONFIG, np)
    )


def test_float16_is_rounded(tmp_path: Path, bilm: EmbeddingBiLM) -> None:
    assert_equal_in_float16(layers_of(make(tmp_path, bilm, SENTENCES, "float16")), plain(bilm))


def test_what_is_on_disk_is_not_embedded_again(tmp_path: Path, bilm: EmbeddingBiLM) -> None:
    first = make(tmp_path, bilm, SENTENCES, "float16")
    distinct = sum(map(len, set(SENTENCES)))
    assert first.words == distinct
    again = make(tmp_path, bilm, SENTENCES[::-1], "float16")
    assert again.words == 0
    assert_array_equal(layers_of(again), layers_of(first))
    other = make(tmp_path, tiny_bilm(1), SENTENCES, "float16")  # never another biLM's vectors
    assert other.words == distinct
    assert not np.array_equal(layers_of(other), layers_of(first))


def test_a_process_that_was_killed_continues(
    tmp_path: Path, bilm: EmbeddingBiLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    plainly = elmo_vectors.write_shard

    def until_the_third(path: Path, *rest: Any) -> None:
        if len(list(tmp_path.glob("*.layers"))) == 2:
            raise KeyboardInterrupt
        plainly(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(elmo_vectors, "write_shard", until_the_third)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path, bilm, SENTENCES, "float16")
    written = sum(sum(Shard(path).lengths) for path in tmp_path.glob("*.layers"))
    actual = make(tmp_path, bilm, SENTENCES, "float16")
    assert 0 < written and actual.words == sum(map(len, set(SENTENCES))) - written
    assert_equal_in_float16(layers_of(actual), plain(bilm))


def test_added_and_reordered_sentences_embed_only_the_new_ones(tmp_path: Path, bilm: EmbeddingBiLM) -> None:
    first = make(tmp_path, bilm, SENTENCES, "float32")
    assert first.words == WORDS - 3  # one of them occurs twice
    before = {path: path.read_bytes() for path in tmp_path.glob("*.layers")}
    more = make(tmp_path, bilm, [("so", "it", "is"), *reversed(SENTENCES)], "float32")
    assert more.words == 3 and {path: path.read_bytes() for path in before} == before
    assert len(list(tmp_path.glob("*.layers"))) == len(before) + 1
    part = make(tmp_path, bilm, SENTENCES[:2], "float32")
    assert part.words == 0 and len(part.files) < len(more.files)
    stored = LayerCache(more.files)
    for words in [("so", "it", "is"), *SENTENCES]:
        layers = bilm.embed([words])[0][0]
        assert_allclose(elmo_vectors.unpack_layers(stored[words][None], bilm.config)[0], layers, atol=1e-5)
    assert make(tmp_path, bilm, SENTENCES, "float16").words == first.words
    split = make(tmp_path, bilm, [("so it", "is")], "float32")  # other words, though the text is the same
    assert split.words == 2


@pytest.mark.parametrize("place", ["header", "numbers", "key", "words", "checksum", "number", "length"])
def test_damaged_files_are_named(tmp_path: Path, bilm: EmbeddingBiLM, place: str) -> None:
    make(tmp_path, bilm, [("a", "boat")], "float16")
    (path,) = tmp_path.glob("*.layers")
    content = bytearray(path.read_bytes())
    if place == "length":
        content = content[:-7]
    else:
        index = len(content) - 12 - 28  # the entry of the sentence, and the checksum and number of entries
        positions = {"header": 1, "numbers": index - 1, "key": index, "words": index + 16, "checksum": index + 24}
        content[positions.get(place, len(content) - 8)] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{path}: .*damaged .*; delete the file, which is then made again"):
        LayerCache(make(tmp_path, bilm, [("a", "boat")], "float16").files)[("a", "boat")]
    path.write_bytes(b"")
    with pytest.raises(UserError, match="damaged"):
        make(tmp_path, bilm, [("a", "boat")], "float16")
    path.unlink()
    assert make(tmp_path, bilm, [("a", "boat")], "float16").words == 2


def test_too_many_open_files_are_no_damage(tmp_path: Path, bilm: EmbeddingBiLM) -> None:
    make(tmp_path, bilm, [("a", "boat")], "float16")
    (path,) = tmp_path.glob("*.layers")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        with pytest.raises(UserError) as error:
            Shard(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert str(error.value) == f"{path}: cannot be read (Too many open files)"
    assert not isinstance(error.value, DamagedFile)


def test_a_disk_without_room_is_told_before_the_work(
    tmp_path: Path, bilm: EmbeddingBiLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, bilm, SENTENCES[:1], "float16")
    assert f"{tmp_path}: vectors of 3 words: 0.2 kB\n" in capsys.readouterr().err
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1))
    make(tmp_path, bilm, SENTENCES[:1], "float16")  # on disk
    assert capsys.readouterr().err == ""
    with pytest.raises(UserError, match="vectors of 3 words: 0.2 kB, and the disk has 0.0 kB free; choose another"):
        make(tmp_path / "new" / "folder", bilm, SENTENCES[:1], "float16")
    assert not (tmp_path / "new").exists()


def test_no_sentences(tmp_path: Path, bilm: EmbeddingBiLM) -> None:
    vectors = make(tmp_path, bilm, [()], "float16")
    assert not vectors.files and vectors.words == 0
