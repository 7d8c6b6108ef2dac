"""Tests the commands for weights, for vectors of a file (also when killed and resumed) and for those of a word list."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax import EmbeddingBiLM, UserError, VectorShards, load_bilm
from elmo_jax.checkpoints.hdf5 import unreadable_by_allennlp
from elmo_jax.cli.main import main
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.embedding import embed_file as files
from elmo_jax.embedding.embed import CarryState
from elmo_jax.embedding.embed_file import embed_file
from elmo_jax.embedding.output_settings import Format, Output, Settings
from elmo_jax.text_files import scan_lines
from elmo_jax.words import split_words
from tests.embedding.published import OPTIONS, WEIGHTS, read
from tests.end_to_end.commands import Commands, stopped_when, wait

TEXT = 'The cat sat .\n\na/b and "q" …\r\n  \none\nw w w w w w w w w w w w\nThe cat\tsat  .'


@pytest.fixture(scope="module")
def bilm() -> EmbeddingBiLM:
    return load_bilm((OPTIONS, WEIGHTS))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_bytes(TEXT.encode())
    return path


def test_in_and_out_is_bit_equal(tmp_path, capsys):
    export, weights, options = tmp_path / "export", tmp_path / "w" / "w.hdf5", tmp_path / "o" / "o.json"
    assert main(["export", str(WEIGHTS), "--options", str(OPTIONS), "--out", str(export)]) == 0
    assert main(["export", str(WEIGHTS), "--options", str(OPTIONS), "--out", str(export)]) == 0  # the same again
    for _ in range(2):
        assert main(["export-hdf5", str(export), str(options), str(weights)]) == 0
    assert load_bilm((options, weights)).fingerprint == load_bilm((OPTIONS, WEIGHTS)).fingerprint
    assert load_bilm(export).config == load_bilm((options, weights)).config
    with h5py.File(WEIGHTS) as one, h5py.File(weights) as two:
        names: list[str] = []
        one.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)
        assert len(names) > 15
        for name in names:
            assert one[name][()].tobytes() == two[name][()].tobytes()
    capsys.readouterr()
    options.write_text("{}")  # nothing else is overwritten
    assert main(["export-hdf5", str(export), str(options), str(weights)]) == 2
    assert options.read_text() == "{}"
    assert main(["export", str(WEIGHTS), "--options", str(OPTIONS), "--out", str(options)]) == 2
    assert "is a file; give a folder" in capsys.readouterr().err
    (tmp_path / "bad.hdf5").write_bytes(b"no")
    assert main(["export", str(tmp_path / "bad.hdf5"), "--options", str(OPTIONS), "--out", str(tmp_path / "new")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "not a whole HDF5 file" in error and not (tmp_path / "new").exists()


def test_options_and_weights_are_two_files_in_one_order(tmp_path, capsys):
    """The options come first; the same path twice would leave no weights."""
    export, one = tmp_path / "export", str(tmp_path / "x")
    assert main(["export", str(WEIGHTS), "--options", str(OPTIONS), "--out", str(export)]) == 0
    (tmp_path / "link").symlink_to(one)
    for two, expected in ((one, "two files"), (str(tmp_path / "link"), "two files")):
        assert main(["export-hdf5", str(export), one, two]) == 2
        assert expected in capsys.readouterr().err
    assert main(["export-hdf5", str(export), str(tmp_path / "w.hdf5"), str(tmp_path / "o.json")]) == 2
    assert "first the options (.json) and then the weights (.hdf5)" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "link"]


def test_lines_become_datasets_in_their_order(bilm, text, tmp_path):
    out = tmp_path / "vectors.hdf5"
    assert embed_file(bilm, text, out) == 7
    sentences = [split_words(line.removesuffix("\r")) for line in TEXT.split("\n")]
    actual = read(out)
    assert [vectors.shape[1] for vectors in actual] == [4, 0, 4, 0, 1, 12, 4]
    for sentence, vectors in zip(sentences, actual, strict=True):
        assert vectors.dtype == np.float32
        assert_allclose(vectors, bilm.embed([sentence])[0][0], atol=1e-5)
    assert_allclose(actual[0], actual[6], atol=1e-5)
    assert not (tmp_path / "vectors.hdf5.parts").exists()


def test_what_is_written(bilm, text, tmp_path):
    embed_file(bilm, text, tmp_path / "all.hdf5")
    every = read(tmp_path / "all.hdf5")
    weights = np.array([0.1, 0.5, -0.3])
    shares = np.exp(weights) / np.exp(weights).sum()
    for settings, expected in (
        (Settings(Output.TOP), lambda layers: layers[-1]),
        (Settings(Output.AVERAGE), lambda layers: layers.mean(0)),
        (Settings(Output.MIX, tuple(weights), 2.0), lambda layers: 2 * np.tensordot(shares, layers, 1)),
    ):
        out = tmp_path / f"{settings.output.value}.hdf5"
        embed_file(bilm, text, out, settings)
        for vectors, layers in zip(read(out), every, strict=True):
            assert vectors.dtype == np.float32 and vectors.shape == layers.shape[1:]
            assert_allclose(vectors, expected(layers), atol=1e-5)
    half = tmp_path / "half.hdf5"
    embed_file(bilm, text, half, Settings(dtype="float16"))
    for vectors, layers in zip(read(half), every, strict=True):
        assert vectors.dtype == np.float16
        assert_allclose(vectors, layers, rtol=2**-11, atol=2e-5)


def test_one_vector_per_sentence_and_the_index_of_sentences(bilm, text, tmp_path):
    settings = Settings(Output.AVERAGE, mean_of_words=True, sentence_index=True)
    assert embed_file(bilm, text, tmp_path / "means.hdf5", settings) == 7
    embed_file(bilm, text, tmp_path / "words.hdf5", Settings(Output.AVERAGE))
    embed_file(bilm, text, tmp_path / "means", Settings(mean_of_words=True, format=Format.NPY))
    with h5py.File(tmp_path / "means.hdf5") as means, h5py.File(tmp_path / "words.hdf5") as words:
        assert list(means) == [*words, "sentence_to_index"]
        for line in words:
            expected = words[line][()].mean(0, keepdims=True) if len(words[line]) else words[line][()]
            assert_allclose(means[line][()], expected, atol=1e-5)
        index = json.loads(means["sentence_to_index"][0])
    assert index["The cat sat ."] == "0" and index["one"] == "4"
    shards = VectorShards(tmp_path / "means")
    assert [item.shape[1] for item in shards] == [1, 0, 1, 0, 1, 1, 1] == shards.lengths.tolist()
    assert_allclose(shards[2], bilm.embed([TEXT.split("\n")[2].split()])[0][0].mean(1, keepdims=True), atol=1e-5)
    with pytest.raises(UserError, match="--sentence-index: needs --format hdf5"):
        embed_file(bilm, text, tmp_path / "other", Settings(sentence_index=True, format=Format.NPY))


def test_the_state_of_a_file(bilm, text, tmp_path):
    sentences = [split_words(line.removesuffix("\r")) for line in TEXT.split("\n")]
    embed_file(bilm, text, tmp_path / "carry.hdf5", Settings(state=CarryState.CARRY))
    carry = None
    for sentence, vectors in zip(sentences, read(tmp_path / "carry.hdf5"), strict=True):
        layers, _, carry = bilm.embed(
            [sentence], carry, "carry"
        )  # as the original's dump does: one row whose state is carried
        assert_allclose(vectors, layers[0], atol=1e-5)
    embed_file(bilm, text, tmp_path / "warm.hdf5", Settings(state=CarryState.WARM_UP))
    for sentence, vectors in zip(sentences, read(tmp_path / "warm.hdf5"), strict=True):
        assert_allclose(vectors, bilm.embed([sentence], state="warm_up")[0][0], atol=1e-5)


@pytest.mark.parametrize("state", list(CarryState))
def test_an_interrupted_run_continues(bilm, text, tmp_path, monkeypatch, state):
    monkeypatch.setattr(files, "LINES", 2)
    settings = Settings(state=state)
    embed_file(bilm, text, tmp_path / "whole.hdf5", settings)
    out, real, done = tmp_path / "vectors.hdf5", files.write_shard, []

    def dies(path, *arguments):
        real(path, *arguments)
        if path.suffix == ".npy":
            done.append(int(path.stem))
            if len(done) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_shard", dies)
    with pytest.raises(KeyboardInterrupt):
        embed_file(bilm, text, out, settings)
    assert not out.exists()
    with pytest.raises(UserError, match="begun from another text, model or settings"):
        embed_file(bilm, text, out, Settings(Output.TOP))
    if state is CarryState.CARRY:
        carry = tmp_path / "vectors.hdf5.parts" / f"{max(done) + 2:012}.carry"
        content = carry.read_bytes()
        carry.write_bytes(content[:-8])
        with pytest.raises(UserError, match=f"{carry.name}: missing or damaged .*; remove the folder"):
            embed_file(bilm, text, out, settings)
        carry.write_bytes(content)
    embed_file(bilm, text, out, settings)
    assert done == [0, 2, 4, 6]  # nothing twice
    for one, two in zip(read(out), read(tmp_path / "whole.hdf5"), strict=True):
        assert_allclose(one, two, atol=1e-5)  # other lines were run together
    done.clear()
    assert embed_file(bilm, text, out, settings) == 7 and not done  # complete already
    with pytest.raises(UserError, match="was not made from these sentences with these settings"):
        embed_file(bilm, text, out, Settings(Output.TOP))


def test_a_killed_command_resumes(tmp_path):
    text, out = tmp_path / "many.txt", tmp_path / "vectors.hdf5"
    text.write_text("".join(f"line {i} of the text , number {i % 7}\n" for i in range(20_000)))
    commands = Commands(tmp_path)
    arguments = ["embed", str(WEIGHTS), str(text), str(out), "--layers", "top", "--options", str(OPTIONS)]
    parts = tmp_path / "vectors.hdf5.parts"
    process = commands.start(*arguments)
    assert stopped_when(process, lambda: len(list(parts.glob("0*.npy"))) >= 2, signal.SIGKILL)
    assert wait(process).status == -signal.SIGKILL
    kept = {path: path.stat().st_mtime_ns for path in parts.glob("0*.npy")}
    assert kept and sorted(path.name for path in tmp_path.iterdir()) == ["many.txt", "vectors.hdf5.parts"]
    # To shorten the wait, the rest of the text is removed, also from the description of the job.
    lines = max(int(path.stem) for path in kept) + 3000
    text.write_text("".join(text.read_text().splitlines(keepends=True)[:lines]))
    job = json.loads((parts / "job.json").read_text())
    job["lines"], job["sentences"] = scan_lines(text)
    (parts / "job.json").write_text(json.dumps(job, indent=1))
    done = commands.run(*arguments)
    assert done.status == 0 and f"{lines:,} lines to" in done.stdout and "still to be written" in done.stderr
    with h5py.File(out) as file:
        assert list(file) == [str(number) for number in range(lines)]  # in the order of the text
    actual, bilm = read(out), load_bilm((OPTIONS, WEIGHTS))
    for number in (0, 1, 1023, 1024, lines - 1):
        expected = bilm.embed([f"line {number} of the text , number {number % 7}".split()])[0][0, -1]
        assert_allclose(actual[number], expected, atol=1e-5)


def test_two_commands_do_not_write_one_output(bilm, text, tmp_path, monkeypatch):
    out, real = tmp_path / "vectors.hdf5", files._write_parts

    def meets_another(*arguments):
        with pytest.raises(UserError, match=r"vectors.hdf5.parts: process \d+ on .* is writing into this folder"):
            embed_file(bilm, text, out)
        return real(*arguments)

    monkeypatch.setattr(files, "_write_parts", meets_another)
    assert embed_file(bilm, text, out) == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sentences.txt", "vectors.hdf5"]


def test_an_output_that_another_command_has_just_made_is_kept(bilm, text, tmp_path, monkeypatch):
    out, real = tmp_path / "vectors.hdf5", files.locked

    def made_before(folder):
        monkeypatch.setattr(files, "locked", real)
        embed_file(bilm, text, out, Settings(Output.TOP))
        return real(folder)

    monkeypatch.setattr(files, "locked", made_before)
    with pytest.raises(UserError, match="was not made from these sentences with these settings"):
        embed_file(bilm, text, out, Settings(Output.AVERAGE))
    assert embed_file(bilm, text, out, Settings(Output.TOP)) == 7
    actual = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert actual == ["sentences.txt", "vectors.hdf5", "vectors.hdf5.parts", "vectors.hdf5.parts/.lock"]


def test_hidden_files_of_the_user_are_kept(bilm, text, tmp_path):
    mine = tmp_path / "vectors.hdf5.parts" / ".mine"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(UserError, match="holds something else; choose another name"):
        embed_file(bilm, text, tmp_path / "vectors.hdf5")
    assert mine.read_text() == "mine"


def test_a_command_that_was_killed_at_its_beginning_resumes(bilm, text, tmp_path):
    partial = tmp_path / "vectors.hdf5.parts" / ".job.json.0123abcd.tmp"
    partial.parent.mkdir()
    partial.write_text("{")
    assert embed_file(bilm, text, tmp_path / "vectors.hdf5") == 7


def test_a_text_that_changes_is_noticed(bilm, text, tmp_path, monkeypatch):
    real = files._write_parts

    def changes(*arguments):
        text.write_bytes(text.read_bytes() + b"more\n")
        return real(*arguments)

    monkeypatch.setattr(files, "_write_parts", changes)
    with pytest.raises(UserError, match="sentences.txt: was changed while its vectors were written"):
        embed_file(bilm, text, tmp_path / "vectors.hdf5")
    assert list(tmp_path.iterdir()) == [text]


def test_memory_is_that_of_a_window(bilm, tmp_path):
    """A long text and a line of many words among short ones are cut into windows of bounded size."""
    text = tmp_path / "text.txt"
    text.write_text("a b c\n" * 3000 + "w " * 40_000 + "\n" + "x y\n" * 10)
    windows = list(files._windows(text, files._made_from(bilm, text, Settings())[0]["sentences"]))
    assert [first for first, _ in windows] == [0, 1024, 2048, 3000, 3001]
    assert all(len(w) <= 1024 and (len(w) == 1 or sum(map(len, w)) <= 16_384) for _, w in windows)
    assert sum(len(w) for _, w in windows) == 3011


@pytest.mark.parametrize(
    ("content", "extra", "message"),
    [
        (b"fine\n\xff\n", [], "text.txt, line 2: byte 0xff is not UTF-8"),
        (b"a\n", ["--layers", "mix"], "--layers mix and --weights go together"),
        (b"a\n", ["--weights", "1,2,3"], "--layers mix and --weights go together"),
        (b"a\n", ["--layers", "mix", "--weights", "1,2"], "2 weights, but this biLM has 3 layers"),
        (b"a\n", ["--layers", "mix", "--weights", "1,x"], "expected numbers separated by commas"),
        (b"a\n", ["--layers", "mix", "--weights", "nan,0,0"], "--weights: expected finite numbers, got nan"),
        (b"a\n", ["--layers", "mix", "--weights", "0,inf,0"], "--weights: expected finite numbers, got inf"),
        (b"a\n", ["--layers", "mix", "--weights", "0,0,0", "--gamma", "nan"], "--gamma: expected a finite number, got"),
        (
            b"\na b\n",
            ["--layers", "mix", "--weights", "0,0,0", "--gamma", "1e9", "--dtype", "float16"],
            "text.txt, line 2: a vector has NaN or a number beyond 65,504, the largest float16; take",
        ),
        (b"a\n\nb\n", ["--words"], "line 2: has no word"),
        (b"a\n", ["--gamma", "2"], "--gamma 2: has an effect only with --layers mix"),
        (b"a\n", ["--words", "--layers", "top"], "remove --layers, --weights"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, content, extra, message):
    text = tmp_path / "text.txt"
    text.write_bytes(content)
    out = tmp_path / "out.hdf5"
    assert main(["embed", str(WEIGHTS), str(text), str(out), "--options", str(OPTIONS), *extra]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("elmo-jax: ") and message in last
    assert list(tmp_path.iterdir()) == [text]


def test_an_output_without_a_name(bilm, text, monkeypatch):
    monkeypatch.chdir(text.parent)
    with pytest.raises(UserError, match="is a folder; give the name of the file to be made"):
        embed_file(bilm, text, Path("."))


def test_a_model_that_is_none(tmp_path, capsys):
    (tmp_path / "t.txt").write_text("a\n")
    assert main(["embed", str(WEIGHTS), str(tmp_path / "t.txt"), str(tmp_path / "o.hdf5")]) == 2
    assert "give --options options.json too" in capsys.readouterr().err
    assert main(["embed", str(tmp_path / "no"), str(tmp_path / "t.txt"), str(tmp_path / "o.hdf5")]) == 2
    assert "a run's folder, an export" in capsys.readouterr().err


def test_a_file_is_iterated_in_the_order_of_the_lines(bilm, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {i}\n" for i in range(12)))
    embed_file(bilm, text, tmp_path / "vectors.hdf5")
    with h5py.File(tmp_path / "vectors.hdf5") as file:
        assert list(file) == [str(i) for i in range(12)]


def test_a_pipe_as_output_and_text_without_spaces_are_refused(bilm, tmp_path):
    text, pipe = tmp_path / "text.txt", tmp_path / "pipe"
    text.write_text("a b\n")
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="pipe: is a pipe or a device; give the name of the file to be made"):
        embed_file(bilm, text, pipe)
    text.write_text("艾达在一八四三年写了它。\n", encoding="utf-8")
    with pytest.raises(UserError, match="text.txt: most of this text is in a script without spaces between words"):
        embed_file(bilm, text, tmp_path / "vectors.hdf5")


def test_what_allennlp_cannot_read_is_named():
    char_cnn = CharCNNConfig(4, ((1, 3), (3, 6)), 1, max_characters=20)
    assert unreadable_by_allennlp(ModelConfig(char_cnn, LSTMConfig(cells=9, projection=9))) == [
        "20 characters per word, where it has 50",
        "no projection in the LSTMs (model.lstm.cells equals projection)",
        "no projection after the filters (their number equals model.lstm.projection)",
    ]
    assert not unreadable_by_allennlp(ModelConfig())
