"""Tests the training checkpoints of bilm-tf: real ones, those of other architectures, and damaged ones."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmo_jax
from elmo_jax.checkpoints.bilm_tf import Checkpoint, checkpoint_of
from elmo_jax.checkpoints.export import export_bilm
from elmo_jax.checkpoints.hdf5 import write_hdf5
from elmo_jax.checkpoints.layout import flatten, parameter_shapes, unflatten
from elmo_jax.checkpoints.open import open_bilm
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.errors import UserError
from elmo_jax.finetuning.source import open_source
from tests.checkpoints.small_models import NO_PROJECTIONS, ONE_LAYER, SMALL
from tests.checkpoints.tensor_bundles import options, variables, write_bundle, write_checkpoint

ORACLE = Path(__file__).parents[1] / "oracles" / "bilm_tf"
WORDS = ["<S>", "</S>", "<UNK>", "the", "of", "and", "to"]
FORWARD_ONLY = dataclasses.replace(ONE_LAYER, directions=("forward",))
WITHOUT_PROJECTION = ModelConfig(  # as many filters as dimensions
    CharCNNConfig(4, ((1, 5), (3, 6)), 1), LSTMConfig(13, 11, 2, skip_connections=False), directions=("forward",)
)


def opened(source: Any) -> Checkpoint:
    checkpoint = checkpoint_of(source)
    assert checkpoint is not None
    return checkpoint


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def test_checkpoint_of_the_original_trainer() -> None:
    """The checksums are of the HDF5 file that `dump_weights.py` wrote, and of what TensorFlow read."""
    bilm = elmo_jax.load_bilm((ORACLE / "options.json", ORACLE / "model.ckpt-120", ORACLE / "words.txt"))
    of_hdf5 = "42de31bf244d3391b64e5dd670d45f62f9ccb5cec758b024980c2d6cc058134b"
    assert bilm.without_softmax().fingerprint == elmo_jax.load_bilm(ORACLE).fingerprint == of_hdf5
    assert bilm.vocabulary == (ORACLE / "words.txt").read_text().split()
    assert sha256(bilm.params["softmax"]["kernel"]).startswith("5ac982125133c554f5146bf9")
    assert sha256(bilm.params["softmax"]["bias"]).startswith("243037633a803b5cf0cf56db")
    sums = opened((None, ORACLE, ORACLE / "words.txt")).accumulators(bilm.config)["softmax"]
    assert sha256(sums["kernel"]).startswith("ef426fd0c55f331705a3ee3f")
    assert sha256(sums["bias"]).startswith("3acc06cf190803b9dc9cce8b")
    assert bilm.info["steps"] == 120 and repr(bilm).endswith("trained in the run 'bilm_tf': 120 steps")


@pytest.mark.parametrize("model", [SMALL, NO_PROJECTIONS, ONE_LAYER, FORWARD_ONLY, WITHOUT_PROJECTION])
def test_any_architecture(tmp_path: Path, model: ModelConfig) -> None:
    arrays = write_checkpoint(tmp_path, model, WORDS, shards=3, per_block=7)
    bilm, sums = open_bilm(tmp_path), flatten(opened(tmp_path).accumulators(model))
    params = flatten(bilm.params)
    assert bilm.config == model and bilm.vocabulary == WORDS
    expected = variables(model, len(WORDS))
    assert params.keys() == sums.keys() == {path for path, _ in expected.values()}
    for name, (path, _) in expected.items():
        assert params[path].tobytes() == arrays[name].tobytes(), name
        assert sums[path].tobytes() == arrays[f"{name}/Adagrad"].tobytes(), name
    assert bilm.info["settings"]["train"]["negatives"] == 8


def test_marks_on_other_lines_move_their_rows_to_the_front(tmp_path: Path) -> None:
    lines = ["the", "</S>", "of", "<UNK>", "and", "to", "<S>"]
    arrays = write_checkpoint(tmp_path, SMALL, lines)
    bilm, sums = open_bilm(tmp_path), opened(tmp_path).accumulators(SMALL)
    assert bilm.vocabulary == ["<S>", "</S>", "<UNK>", "the", "of", "and", "to"]
    for row, word in enumerate(bilm.vocabulary):
        line = lines.index(word)
        assert np.array_equal(bilm.params["softmax"]["kernel"][row], arrays["lm/softmax/W"][line])
        assert bilm.params["softmax"]["bias"][row] == arrays["lm/softmax/b"][line]
        assert sums["softmax"]["bias"][row] == arrays["lm/softmax/b/Adagrad"][line]


def test_which_checkpoint_is_read(tmp_path: Path) -> None:
    for step in (7, 30, 9):
        write_checkpoint(tmp_path, ONE_LAYER, WORDS, step, adagrad=False)
    for name in ("", "model.ckpt-9", "model.ckpt-9.index", "model.ckpt-9.data-00000-of-00001"):
        assert open_bilm(tmp_path / name).info["steps"] == 9
    assert open_bilm(tmp_path / "model.ckpt-30").info["steps"] == 30
    assert not opened(tmp_path).has_accumulators
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "C:\\\\runs\\\\model.ckpt-30"\n')  # of Windows
    assert open_bilm(tmp_path).info["steps"] == 30
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(UserError, match="has several checkpoints; name one, such as .*/model.ckpt-9"):
        open_bilm(tmp_path)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-50"\n')
    with pytest.raises(
        UserError, match="checkpoint names model.ckpt-50, whose .index is not there; name one, such as "
    ):
        open_bilm(tmp_path)


def edited(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / "options.json").write_text(json.dumps(options(SMALL, **changes)))

    return edit


def written(name: str, value: Any, **how: Any) -> Callable[[Path], None]:
    """Writes a variable with another value, or without it for None."""

    def write(folder: Path) -> None:
        arrays: dict[str, Any] = write_checkpoint(folder, SMALL, WORDS)
        arrays[name] = value
        write_bundle(folder / "model.ckpt-120", {k: v for k, v in arrays.items() if v is not None}, **how)

    return write


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size]) and None


def flipped(name: str, at: int) -> Callable[[Path], None]:
    def flip(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[at] ^= 4
        (folder / name).write_bytes(content)

    return flip


INDEX, DATA = "model.ckpt-120.index", "model.ckpt-120.data-00000-of-00001"
BIAS = "lm/RNN_1/rnn/multi_rnn_cell/cell_1/lstm_cell/bias"
MISTAKES = [
    (flipped(DATA, 9000), f"{DATA}: variable 'lm/.*' is damaged .its CRC differs.; get the file again"),
    (cut(DATA, 9000), f"{DATA}: variable 'lm/.*' is cut short, or the .index is of another checkpoint"),
    (lambda folder: (folder / DATA).unlink(), f"{DATA}: cannot be read .No such file"),
    (flipped(INDEX, 100), f"{INDEX}: damaged, .*.the CRC of a block differs.; get the file again"),
    (cut(INDEX, 1000), f"{INDEX}: damaged, or no index of TensorFlow .it does not end as one."),
    (cut(INDEX, 0), f"{INDEX}: damaged, or no index of TensorFlow .it does not end as one."),
    (
        written("lm/char_embed", np.zeros((262, 5), "f4")),
        r"'lm/char_embed' has shape \(262, 5\); expected shape \(261, 5\)",
    ),
    (written(BIAS, None), f"variable '{BIAS}' is missing; expected shape .92,., as .*options.json says"),
    (written(BIAS, np.zeros(92, "f2")), f"'{BIAS}' has TensorFlow's type 19, which cannot be read"),
    (written(BIAS, np.zeros(92)), f"'{BIAS}' has TensorFlow's type 2, which cannot be read"),
    (written(BIAS, np.zeros(92, "i4")), f"'{BIAS}' has int32 numbers that are not all finite float32"),
    (written(BIAS, np.full(92, np.inf, "f4")), f"'{BIAS}' has float32 numbers that are not all finite float32"),
    (written(BIAS, np.zeros(92, "f4"), slices=[BIAS]), f"'{BIAS}' is partitioned, which cannot be read"),
    (written("lm/CNN/W_cnn_3", np.zeros(3, "f4")), "'lm/CNN/W_cnn_3' is there, but .*options.json has no place"),
    (written("global_step", np.float32("nan")), "'global_step' is nan; expected a number of updates"),
    (edited(char_cnn=None), "options.json: a word-level model .no 'char_cnn'.; only models that read characters"),
    (lambda f: (f / "options.json").write_text("[]"), "options.json: a word-level model .no 'char_cnn'."),
    (lambda f: (f / "options.json").unlink(), "options.json: cannot be read .No such file.*expected the options.json"),
    (
        lambda f: (f / "vocab.txt").write_text("<S>\n</S>\n<UNK>\na\n"),
        "vocab.txt: 4 words, and the softmax of .* has 7;",
    ),
    (lambda f: (f / "vocab.txt").write_text("a\nb\nc\nd\ne\nf\ng\n"), "vocab.txt: no <S> and no </S> and no <UNK>"),
]


@pytest.mark.parametrize(("spoil", "message"), MISTAKES)
def test_mistakes_give_one_line(tmp_path: Path, spoil: Callable[[Path], Any], message: str) -> None:
    write_checkpoint(tmp_path, SMALL, WORDS)
    spoil(tmp_path)
    with pytest.raises(UserError, match=message) as error:
        open_bilm(tmp_path)
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_accumulators_are_above_zero(tmp_path: Path, value: float) -> None:
    written(f"{BIAS}/Adagrad", np.full(92, value, "f4"))(tmp_path)
    assert open_bilm(tmp_path).info["steps"] == 120
    with pytest.raises(UserError, match=f"'{BIAS}/Adagrad' has float32 numbers that are not all finite"):
        opened(tmp_path).accumulators(SMALL)


def test_every_cut_and_many_flips_of_an_index_give_one_line(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, ONE_LAYER, WORDS, per_block=5)
    index = tmp_path / INDEX
    content = index.read_bytes()
    for at in range(0, len(content), 7):
        for damaged in (content[:at], content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]):
            index.write_bytes(damaged)
            try:
                open_bilm(tmp_path)  # a byte of padding in the footer does not matter
            except UserError as error:
                assert "\n" not in str(error)
            else:
                assert len(content) - 48 < at < len(content) - 8


def test_a_vocabulary_names_words_of_checkpoints_only(tmp_path: Path) -> None:
    pair = tmp_path / "options.json", tmp_path / "weights.hdf5"
    write_hdf5(
        *pair, ONE_LAYER, unflatten({path: np.zeros(s, "f4") for path, s in parameter_shapes(ONE_LAYER).items()})
    )
    for source in (pair, (None, tmp_path)):
        with pytest.raises(
            UserError, match="words.txt: has no effect, as .* is no checkpoint of bilm-tf; leave it out"
        ):
            open_bilm((*source, ORACLE / "words.txt"))


def test_what_is_not_there_is_named_with_a_vocabulary_too(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SMALL, WORDS)
    (tmp_path / INDEX).unlink()
    words = tmp_path / "vocab.txt"
    for path in (tmp_path, tmp_path / "model.ckpt-120"):
        for source in (path, (None, path, words)):
            with pytest.raises(UserError, match="a checkpoint of bilm-tf without its .index; get that file too"):
                open_bilm(source)
    with pytest.raises(UserError, match="nothing: no such file or folder; expected"):
        open_bilm((None, tmp_path / "nothing", words))
    with pytest.raises(UserError, match="nothing: cannot be read"):
        open_bilm((tmp_path / "options.json", tmp_path / "nothing", words))


def test_an_export_in_the_folder_is_not_fine_tuned_with_accumulators_of_the_checkpoint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, ONE_LAYER, WORDS)
    expected = open_bilm(tmp_path)
    other = {path: np.zeros_like(array) for path, array in flatten(expected.params).items()}
    export_bilm(tmp_path, ONE_LAYER, unflatten(other), WORDS, {})
    source = open_source(tmp_path)
    assert source.checkpoint and source.bilm.fingerprint == expected.fingerprint


def test_hidden_files_beside_a_checkpoint_do_not_matter(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, ONE_LAYER, WORDS)
    (tmp_path / "checkpoint").unlink()
    (tmp_path / f"._{INDEX}").write_bytes(b"of macOS")
    assert open_bilm(tmp_path).info["steps"] == 120
