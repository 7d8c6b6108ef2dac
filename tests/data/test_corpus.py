import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import grain
import numpy as np
import pytest

from elmo_jax.data.blocks import BLOCK_TOKENS, cut_blocks
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.prepare.options import PrepareOptions, TextOptions
from elmo_jax.data.prepare.pipeline import describe, prepare
from elmo_jax.data.windows import spread_blocks
from elmo_jax.errors import UserError

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a corpus of 40 documents of 30 sentences, with words of the three letters a, b and c."""
    base = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    (base / "text").mkdir()
    for i in range(40):
        lines = (" ".join("abc"[k] for k in rng.integers(0, 3, rng.integers(1, 9))) for _ in range(30))
        (base / "text" / f"{i:02}.txt").write_text("\n".join(lines))
    return prepare([str(base / "text")], base / "corpus", PrepareOptions(TextOptions("lines"), progress=False)).path


def test_reads_back_what_was_prepared(folder: Path) -> None:
    corpus = Corpus.open(folder)
    assert {p.name for p in folder.iterdir()} == {"corpus.json", "lexicon.tsv", "vocabulary.txt", "blocks"}
    assert corpus.path == folder and corpus.report.items() <= json.loads((folder / "corpus.json").read_text()).items()
    assert corpus.words()[:3] == corpus.vocabulary()[:3] == ["<S>", "</S>", "<UNK>"]
    assert sorted(corpus.words()[3:]) == ["a", "b", "c"] and corpus.vocabulary_size == 6
    assert corpus.char_ids(20).shape == (6, 20) and corpus.char_ids().shape == (6, 50)
    assert corpus.char_ids(20)[0, :4].tolist() == [258, 256, 259, 260]
    text = [(folder.parent / "text" / f"{i:02}.txt").read_text().split("\n") for i in range(40)]
    words = corpus.words()
    for split, numbers in (("train", [i for i in range(40) if i % 20 != 19]), ("heldout", [19, 39])):
        blocks = corpus.blocks(split)
        ids = np.concatenate([blocks[i] for i in range(len(blocks))])
        assert ids.dtype == np.int32
        read = " ".join("|" if i == 0 else words[i] for i in ids)
        assert read == " ".join(f"| {line}" for i in numbers for line in text[i])
        assert corpus.tokens(split) == len(ids)


def test_blocks_index_as_a_sequence(folder: Path) -> None:
    blocks = Corpus.open(folder).blocks("train")
    assert len(list(blocks)) == len(blocks) > 2  # type: ignore[call-overload]
    for index in (-1, len(blocks)):
        with pytest.raises(IndexError):
            blocks[index]
    with pytest.raises(ValueError, match="expected train or heldout"):
        Corpus.open(folder).blocks("test")


def test_blocks_feed_grain_and_travel_to_other_processes(folder: Path) -> None:
    blocks = Corpus.open(folder).blocks("train")
    shuffled = grain.MapDataset.source(blocks).seed(1).shuffle()
    total = sum(len(block) for block in shuffled.to_iter_dataset())
    assert total == Corpus.open(folder).tokens("train")
    assert np.array_equal(pickle.loads(pickle.dumps(blocks))[1], blocks[1])


def test_plain_tfds_reads_the_blocks_without_tensorflow(folder: Path) -> None:
    code = f"""
import sys
import tensorflow_datasets as tfds
read = tfds.builder_from_directory({str(folder / "blocks")!r}).as_data_source()
print({{name: sum(len(example["tokens"]) for example in split) for name, split in read.items()}})
from elmo_jax.data.corpus import Corpus
corpus = Corpus.open({str(folder)!r})
print({{name: sum(len(block) for block in corpus.blocks(name)) for name in ("train", "heldout")}})
assert not {{"tensorflow", "jax"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    corpus = Corpus.open(folder)
    assert done.stdout == f"{ {name: corpus.tokens(name) for name in ('train', 'heldout')} }\n" * 2
    assert done.stderr == ""


def test_table(folder: Path) -> None:
    table = describe(Corpus.open(folder))
    rows = {line[:20].strip(): line[20:].split() for line in table.split("\n")[1:]}
    assert rows["documents"] == ["38", "2"] and rows["sentences"] == ["1,140", "60"]
    assert rows["softmax vocabulary"] == ["6"]


def break_corpus(folder: Path, how: str) -> None:
    report = json.loads((folder / "corpus.json").read_text())
    match how:
        case "no such folder":
            shutil.rmtree(folder)
        case "has no corpus.json":
            (folder / "corpus.json").unlink()
        case "written by another version":
            (folder / "corpus.json").write_text(json.dumps({**report, "format_version": 99}))
        case "damaged":
            (folder / "corpus.json").write_text("{")
        case "lexicon.tsv: missing":
            (folder / "lexicon.tsv").unlink()
        case "blocks: missing":
            shutil.rmtree(folder / "blocks")


@pytest.mark.parametrize(
    "how",
    [
        "no such folder",
        "has no corpus.json",
        "written by another version",
        "damaged",
        "lexicon.tsv: missing",
        "blocks: missing",
    ],
)
def test_what_is_no_corpus_is_one_line(folder: Path, tmp_path: Path, how: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    break_corpus(copy, how)
    with pytest.raises(UserError) as error:
        Corpus.open(copy)
    assert how in str(error.value) and str(copy) in str(error.value) and "\n" not in str(error.value)


def test_a_corpus_without_a_name_is_not_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert Corpus.open(".").fingerprint == Corpus.open(folder).fingerprint
    with pytest.raises(UserError, match="expected a path, got"):
        Corpus.open("")


def test_a_corpus_in_a_bucket_is_to_be_copied() -> None:
    with pytest.raises(
        UserError, match="gs://bucket/corpus: training reads a corpus from the disk; copy it there first"
    ):
        Corpus.open("gs://bucket/corpus")


def swap_lines(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], *reversed(lines[3:])]))


@pytest.mark.parametrize("name", ["lexicon.tsv", "vocabulary.txt"])
def test_words_in_another_order_are_refused(folder: Path, tmp_path: Path, name: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    swap_lines(copy / name)
    with pytest.raises(UserError, match=f"{name}: not what was written"):
        Corpus.open(copy)


def test_damaged_blocks_are_one_line(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    shard = copy / "blocks" / "blocks-train.array_record-00000"
    data = shard.read_bytes()
    for damage in (data[: len(data) // 2], b""):
        shard.write_bytes(damage)
        with pytest.raises(UserError, match="cannot be read; delete the corpus and prepare it again"):
            list(Corpus.open(copy).blocks("train"))  # type: ignore[call-overload]


def test_blocks_hold_whole_sentences_and_fill_up() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, 5000).astype(np.int32)
    lengths[[17, 18, 4000]] = 5000, BLOCK_TOKENS, BLOCK_TOKENS - 1
    ids = rng.integers(3, 99, lengths.sum()).astype(np.int32)
    blocks = list(cut_blocks([(ids, lengths)]))
    marked = np.concatenate([np.concatenate([[0], s]) for s in np.split(ids, np.cumsum(lengths)[:-1])])
    assert np.array_equal(np.concatenate(blocks), marked)
    assert all(block[0] == 0 for block in blocks)
    for block, after in zip(blocks, blocks[1:], strict=False):
        assert len(block) <= BLOCK_TOKENS or np.count_nonzero(block == 0) == 1
        second = np.flatnonzero(after == 0)[1:2]
        assert len(block) + (second[0] if len(second) else len(after)) > BLOCK_TOKENS


@pytest.mark.parametrize("parts", [2, 7, 300])
def test_blocks_do_not_depend_on_the_parts(parts: int) -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 60, 1000).astype(np.int32)
    lengths[500] = 4000
    ids = np.arange(3, lengths.sum() + 3).astype(np.int32)
    bounds = np.sort(rng.integers(0, 1000, parts))
    words = np.concatenate([[0], np.cumsum(lengths)])[bounds]
    cut = list(cut_blocks(zip(np.split(ids, words), np.split(lengths, bounds), strict=True)))
    whole = list(cut_blocks([(ids, lengths)]))
    assert [block.tolist() for block in cut] == [block.tolist() for block in whole]


def test_blocks_are_spread_evenly() -> None:
    blocks = [np.full(BLOCK_TOKENS - 7 * (i % 3), i) for i in range(10)]
    for tokens, expected in (
        (0, range(10)),
        (1, [0]),
        (BLOCK_TOKENS, [0]),
        (BLOCK_TOKENS + 1, [0, 5]),
        (3 * BLOCK_TOKENS, [0, 3, 6]),
        (9 * BLOCK_TOKENS, range(9)),
        (9 * BLOCK_TOKENS + 1, range(10)),
        (10**12, range(10)),
    ):
        assert [block[0] for block in spread_blocks(blocks, tokens)] == list(expected)
