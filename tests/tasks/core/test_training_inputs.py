"""Tests what the training of a task refuses, and what it does with words that are rare or have no vector."""

import errno
from pathlib import Path

import jax
import numpy as np
import pytest

import elmo_jax
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.embedding.shards import Shard
from elmo_jax.errors import UserError
from elmo_jax.tasks.core import elmo_vectors, trained_task
from elmo_jax.tasks.core.classification import ClassifiedTexts
from elmo_jax.tasks.core.config import TaskTrainConfig, WordVectorsConfig
from elmo_jax.tasks.core.data import MOST_PAIRS, TaskData, with_overflow
from elmo_jax.tasks.core.elmo_vectors import LayerCache, make
from elmo_jax.tasks.core.inputs import TextEncoder
from elmo_jax.tasks.core.setup import TaskSetup, check_labels
from elmo_jax.tasks.core.tagging import TaggedSentence
from elmo_jax.tasks.core.vocabulary import Vocabulary, WordTable
from elmo_jax.tasks.registry import get_task
from tests.tasks.tagging import curve, train, write_problem


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("problem")
    write_problem(folder)
    return folder


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("data.train=nowhere.conllu",), "nowhere.conllu"),
        (("data.dev=",), "config.data.dev: no examples"),
        (("bilm=nowhere",), "nowhere: no such file or folder"),
        (("train.max_length=1",), "config.train.max_length"),
        (("word_vectors.path=nowhere.txt",), "nowhere.txt: no such file of word vectors"),
        (("word_vectors.dim=0", "characters.filters=()"), "config: words have no vectors; set word_vectors.path"),
    ],
)
def test_a_mistake_is_one_line(folder: Path, tmp_path: Path, more: tuple[str, ...], expected: str) -> None:
    with pytest.raises(UserError, match=expected) as error:
        train(folder, tmp_path / "run", *more)
    assert "\n" not in str(error.value)


def test_a_loss_that_is_not_finite_is_told(folder: Path, tmp_path: Path) -> None:
    """Without a mean of squares, Adam divides a mean of gradients by `eps` where the last gradient is zero."""
    more = ("train.optimizer.learning_rate=1000", "train.optimizer.b2=0", "train.optimizer.eps=1e-30")
    with pytest.raises(UserError, match="the loss became infinite or NaN before step ") as error:
        train(folder, tmp_path / "run", *more, "train.epochs=30", "train.evaluate_every=1000")
    step = int(str(error.value).split(" before step ")[1].split(";")[0])
    assert 0 < step < 30 * 5  # at once, not at the evaluation at the end
    assert curve(tmp_path / "run", "step") == [0]


def test_the_layer_of_the_bilm_must_exist(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="config.elmo.layers: expected 1 to 2"):
        train(folder, tmp_path / "run", f"bilm={folder / 'bilm'}", "elmo.layers=3")


def test_a_disk_without_room_for_the_layers_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(elmo_vectors, "write_shard", full)
    monkeypatch.setenv("HOME", str(tmp_path))
    elmo = (f"bilm={folder / 'bilm'}", "elmo.cache=~/layers")
    with pytest.raises(UserError, match=r"layers: cannot be written \(No space left on device\)"):
        train(folder, tmp_path / "run", *elmo)
    assert not list((tmp_path / "layers").glob("[!.]*"))


def distinct_sentences(path: Path) -> set[tuple[str, ...]]:
    blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
    return {tuple(line.split("\t")[1] for line in block.splitlines()) for block in blocks}


def test_no_layers_are_stored_of_sentences_that_are_too_long_to_be_trained_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    elmo = (f"bilm={folder / 'bilm'}", "elmo.cache=~/layers")
    train(folder, tmp_path / "run", *elmo, "train.max_length=3", "train.epochs=1")
    (stored,) = [Shard(path) for path in (tmp_path / "layers").glob("*.layers")]
    sentences = {name: distinct_sentences(folder / f"{name}.conllu") for name in ("train", "dev", "test")}
    short = {sentence for sentence in sentences["train"] if len(sentence) <= 3}
    assert 0 < len(short) < len(sentences["train"])
    assert len(stored.vectors) == sum(map(len, short | sentences["dev"] | sentences["test"]))


def test_damage_anywhere_in_stored_layers_is_refused_or_made_again(tmp_path: Path) -> None:
    bilm, sentences = elmo_jax.load_bilm("english"), [["a", "b"], ["c"], ["d", "e", "f"]]
    expected = LayerCache(make(tmp_path, bilm, sentences, "float16").files)
    layers = [np.array(expected[sentence]) for sentence in sentences]
    (path,) = tmp_path.glob("*.layers")
    whole, refused = path.read_bytes(), 0
    cuts = [whole[:size] for size in (0, 10, 128, len(whole) - 1)]
    for damaged in [*cuts, whole + b"x", *(flipped(whole, position) for position in [*range(0, 212, 4), 300])]:
        path.write_bytes(damaged)
        try:
            actual = LayerCache(make(tmp_path, bilm, sentences, "float16").files)
            for sentence, layer in zip(sentences, layers, strict=True):
                np.testing.assert_allclose(actual[sentence], layer, atol=2e-2)
        except UserError as error:
            assert str(path) in str(error) and "damaged" in str(error)
            refused += 1
        for other in set(tmp_path.glob("*.layers")) - {path}:
            other.unlink()
    assert refused > 40


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_words_that_are_all_rare_are_unknown(folder: Path, tmp_path: Path) -> None:
    actual = train(folder, tmp_path / "run", "word_vectors.min_count=100000", "characters.filters=((2,3),)")
    assert actual["dev"]["mean"] > 30 and len(elmo_jax.load_task(tmp_path / "run").predict([["a", "dog"]])) == 1


def test_words_whose_pretrained_vectors_were_not_read_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_problem(tmp_path)
    words = ("the", "dog", "sees", "old", "zebra")
    (tmp_path / "vectors.txt").write_text("".join(f"{word} {i} 1\n" for i, word in enumerate(words)))
    more = ("train.epochs=1", f"word_vectors.path={tmp_path / 'vectors.txt'}")
    train(tmp_path, tmp_path / "run", *more)
    task = elmo_jax.load_task(tmp_path / "run")
    (tmp_path / "new.conllu").write_text(
        "".join(f"{i}\t{word}\t_\tNOUN\t_\t_\t0\t_\t_\t_\n" for i, word in enumerate(("The", "zebra"), 1)) + "\n"
    )
    capsys.readouterr()
    task.evaluate(str(tmp_path / "new.conllu"))
    printed = capsys.readouterr().err
    assert printed.startswith(f"elmo-jax: {tmp_path / 'new.conllu'}: 1 of 2 distinct words have no vector in this run")
    assert "train with this text as data.test" in printed and printed.count("\n") == 1
    task.predict([["the", "zebra"]])
    task.predict([["the", "zebra"]])
    assert capsys.readouterr().err.count("the text: 1 of 2 distinct words") == 1  # not for every sentence
    task.evaluate(str(tmp_path / "test.conllu"))
    together = task.predict([["the", "dog"], ["a"], ["dog", "sees", "the"]])
    assert capsys.readouterr().err == ""
    calls, real = [], trained_task.predict
    monkeypatch.setattr(trained_task, "_STREAMED", 2)
    monkeypatch.setattr(trained_task, "predict", lambda *given: (calls.append(given), real(*given))[1])
    stream = task.stream([["the", "dog"], ["a"], ["dog", "sees", "the"]])
    assert next(stream) == together[0] and len(calls) == 1  # printed before the others are made
    assert list(stream) == together[1:] and len(calls) == 2


def rename_tags(path: Path, old: str, new: str, number: int = -1) -> None:
    path.write_text(path.read_text().replace(f"\t{old}\t", f"\t{new}\t", number))


def test_labels_that_the_training_lacks_are_counted_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tags may be rare, so some in dev are reported; a file with other tags is refused, and only counted later."""
    write_problem(tmp_path)
    rename_tags(tmp_path / "dev.conllu", "NOUN", "Noun", 1)
    train(tmp_path, tmp_path / "run", "train.epochs=1")
    printed = "config.data.dev: 1 labels that the training examples do not have: 'Noun' (1); each counts as an error"
    assert printed in capsys.readouterr().err
    for tag in ("DET", "ADJ", "NOUN"):
        rename_tags(tmp_path / "test.conllu", tag, tag.lower())
    with pytest.raises(UserError, match=r"config.data.test: \d+ labels that the training examples do not have: '"):
        train(tmp_path, tmp_path / "other", "train.epochs=1")
    assert not (tmp_path / "other").exists()
    elmo_jax.load_task(tmp_path / "run").evaluate(str(tmp_path / "test.conllu"))
    assert f"{tmp_path / 'test.conllu'}: " in (err := capsys.readouterr().err) and "'noun' (" in err


def test_classes_that_the_training_lacks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = {"classes": ["neg", "pos"]}
    examples = [ClassifiedTexts((["a"],), label) for label in ("pos", "neg", "Neg")]
    with pytest.raises(UserError, match=r"dev: 1 labels that .* do not have: 'Neg' \(1\); correct the file"):
        check_labels(get_task("sst"), examples, labels, "dev", refuse=True)
    check_labels(get_task("sst"), examples, labels, "test")
    assert capsys.readouterr().err.startswith("elmo-jax: test: 1 labels that")
    ner = [TaggedSentence(["a", "b"], ["B-PER", "I-PER"]), TaggedSentence(["c"], ["B-LOC"])]
    with pytest.raises(UserError, match=r"'B-LOC' \(1\)"):
        check_labels(get_task("ner"), ner, {"tags": ["O", "B-PER", "I-PER", "U-PER", "L-PER"]}, "dev", refuse=True)


def test_texts_longer_than_those_of_the_training_are_in_smaller_batches() -> None:
    """Attention compares all words of a text with each other, in every slot of a batch."""
    config = get_task("sst").config_class(train=TaskTrainConfig(batch_size=32), word_vectors=WordVectorsConfig(dim=3))
    words = Vocabulary([], [], config.word_vectors)
    table = WordTable(np.zeros((2, 3), np.float32), np.zeros(2, bool), 0.0, None)
    setup = TaskSetup(get_task("sst"), config, {"classes": ["a"]}, words, table, None, make_mesh(jax.devices()[:1]))
    lengths = [10] * 31 + [3000] * 3 + [400] * 40
    examples = [ClassifiedTexts((["x"] * length,), "a") for length in lengths]
    shapes = with_overflow([((1, 12),), ((1, 400),)], [setup.task.size(example) for example in examples])
    data = TaskData(setup, TextEncoder(setup), examples, shapes)
    batches = data.epoch(None)
    assert sorted(number for batch in batches for number in batch.examples) == list(range(len(examples)))
    actual = [data.arrays(batch).texts[0]["mask"].shape for batch in batches]
    assert actual == [(32, 12), (26, 400), (26, 400), (1, 4096), (1, 4096), (1, 4096)]
    assert 26 * 400**2 <= MOST_PAIRS < 27 * 400**2
    training = TaskData(setup, TextEncoder(setup), examples[-40:], shapes, trains=True)
    assert [len(batch.examples) for batch in training.epoch(None)] == [32, 8]
