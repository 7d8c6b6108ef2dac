"""Layers kept on disk: the numbers of `embed`, rows by word, and what a later process need not embed again."""

from __future__ import annotations

import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from elmo_jax import EmbeddingBiLM, UserError
from elmo_jax.analysis import vectors as module
from elmo_jax.analysis.vectors import all_layers, embed, one_layer, side_by_side, top_addition
from elmo_jax.embedding.shards import DamagedFile, Shard
from elmo_jax.tasks.core import elmo_vectors
from elmo_jax.tasks.core.elmo_vectors import StoredLayers, make
from tests.analysis.texts import CONFIG, tiny_bilm

SENTENCES = [
    tuple(text.split())
    for text in ("the old boat", "fish", "the bank of the river is green", "the old boat", "a boat sinks", "it waits")
]
WORDS = sum(map(len, SENTENCES))
SIZE = 2 * CONFIG.lstm.projection


@pytest.fixture(scope="module")
def bilm() -> EmbeddingBiLM:
    return tiny_bilm()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes chunks and files small, so that there are several, with a border inside a sentence."""
    monkeypatch.setattr(module, "ROWS", 4)
    monkeypatch.setattr(elmo_vectors, "WORDS_PER_FILE", 3)


def plain(bilm: EmbeddingBiLM) -> np.ndarray:
    """Returns the vectors [N, L+1, 2P] of all words, computed one sentence at a time."""
    return np.concatenate([bilm.embed([words])[0][0].swapaxes(0, 1) for words in SENTENCES])


def test_rows_are_the_vectors_of_embed(tmp_path: Path, bilm: EmbeddingBiLM) -> None:
    expected = plain(bilm)  # [N, L+1, 2P]
    vectors = embed(tmp_path, bilm, SENTENCES, "float32")
    assert len(list(tmp_path.glob("*.layers"))) == 4
    assert (vectors.layers, vectors.config) == (3, CONFIG)
    for layer in range(3):
        found = vectors.rows(SENTENCES, one_layer(layer), "float32")
        assert found.shape == (WORDS, 1, SIZE) and found.dtype == np.float32
        assert_allclose(found[:, 0], expected[:, layer], atol=1e-6)
    assert_allclose(vectors.rows(SENTENCES, all_layers, "float32"), expected, atol=1e-6)
    together = vectors.rows(SENTENCES, side_by_side, "float32")
    assert together.shape == (WORDS, 1, 3 * SIZE)
    assert_allclose(together[:, 0], expected.reshape(WORDS, -1), atol=1e-6)
    added = vectors.rows(SENTENCES, top_addition, "float32")
    assert_allclose(added[:, 0], expected[:, 2] - expected[:, 1], atol=2e-6)
    rows = [len(chunk) for chunk in vectors.chunks(SENTENCES)]
    assert rows == [4] * (WORDS // 4) + [WORDS % 4]


def test_float16_is_rounded(tmp_path: Path, bilm: EmbeddingBiLM) -> None:
    found = embed(tmp_path, bilm, SENTENCES).rows(SENTENCES, one_layer(2))
    assert found.dtype == np.float16
    assert_array_equal(found[:, 0], plain(bilm)[:, 2].astype(np.float16))


def test_what_is_on_disk_is_not_embedded_again(tmp_path: Path, bilm: EmbeddingBiLM) -> None:
    first = embed(tmp_path, bilm, SENTENCES)
    distinct = sum(map(len, set(SENTENCES)))
    assert first.speed.words == distinct
    assert str(module.Speed(3000, 2.0)) == "embedded 3,000 words in 2 s: 1,500 words per second"
    again = embed(tmp_path, bilm, SENTENCES[::-1])
    assert again.speed == (0, 0.0) and str(again.speed) == "all vectors were on disk"
    assert_array_equal(again.rows(SENTENCES, all_layers), first.rows(SENTENCES, all_layers))
    other = embed(tmp_path, tiny_bilm(1), SENTENCES)  # never another biLM's vectors
    assert other.speed.words == distinct
    assert not np.array_equal(other.rows(SENTENCES, all_layers), first.rows(SENTENCES, all_layers))


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
            embed(tmp_path, bilm, SENTENCES)
    written = sum(sum(Shard(path).lengths) for path in tmp_path.glob("*.layers"))
    found = embed(tmp_path, bilm, SENTENCES)
    assert 0 < written and found.speed.words == sum(map(len, set(SENTENCES))) - written
    assert_array_equal(found.rows(SENTENCES, one_layer(1))[:, 0], plain(bilm)[:, 1].astype(np.float16))


def test_added_and_reordered_sentences_embed_only_the_new_ones(tmp_path: Path, bilm: EmbeddingBiLM) -> None:
    first = make(tmp_path, bilm, SENTENCES, "float32")
    assert first.words == WORDS - 3  # one of them occurs twice
    before = {path: path.read_bytes() for path in tmp_path.glob("*.layers")}
    more = make(tmp_path, bilm, [("so", "it", "is"), *reversed(SENTENCES)], "float32")
    assert more.words == 3 and {path: path.read_bytes() for path in before} == before
    assert len(list(tmp_path.glob("*.layers"))) == len(before) + 1
    part = make(tmp_path, bilm, SENTENCES[:2], "float32")
    assert part.words == 0 and len(part.files) < len(more.files)
    stored = StoredLayers(more.files)
    for words in [("so", "it", "is"), *SENTENCES]:
        layers = bilm.embed([words])[0][0]
        assert_allclose(elmo_vectors.unpacked(stored[words][None], bilm.config)[0], layers, atol=1e-6)
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
        StoredLayers(make(tmp_path, bilm, [("a", "boat")], "float16").files)[("a", "boat")]
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
    embed(tmp_path, bilm, SENTENCES[:1])
    assert f"{tmp_path}: vectors of 3 words: 0.2 kB\n" in capsys.readouterr().err
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1))
    embed(tmp_path, bilm, SENTENCES[:1])  # on disk
    assert capsys.readouterr().err == ""
    with pytest.raises(UserError, match="vectors of 3 words: 0.2 kB, and the disk has 0.0 kB free; choose another"):
        embed(tmp_path / "new" / "folder", bilm, SENTENCES[:1])
    assert not (tmp_path / "new").exists()


def test_no_sentences(tmp_path: Path, bilm: EmbeddingBiLM) -> None:
    vectors = embed(tmp_path, bilm, [()])
    assert list(vectors.chunks([()])) == [] and vectors.speed.words == 0
