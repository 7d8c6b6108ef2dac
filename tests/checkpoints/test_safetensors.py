"""The one-file form of a biLM: what is written is what is read, rounding in float16, damage, and packaged names."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from elmo_jax import pretrained
from elmo_jax.checkpoints.export import PretrainedBiLM
from elmo_jax.checkpoints.layout import fingerprint, flatten
from elmo_jax.checkpoints.open import open_bilm
from elmo_jax.checkpoints.safetensors import read_safetensors, without_softmax, write_safetensors
from elmo_jax.cli.main import main
from elmo_jax.errors import UserError
from tests.checkpoints.exports import MODEL, tree

pytestmark = pytest.mark.quick

WORDS = ["<UNK>", "</S>", "a\u2028b", "né"]


@pytest.fixture
def bilm() -> PretrainedBiLM:
    params = tree()
    size = len(params["softmax"]["bias"])
    words = [*WORDS, *(f"w{i}" for i in range(size - len(WORDS)))]
    return PretrainedBiLM(MODEL, params, words, {"steps": 7}, fingerprint(flatten(params)))


@pytest.fixture
def written(bilm: PretrainedBiLM, tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "bilm.safetensors"
    write_safetensors(path, bilm)
    return path


def test_what_is_read_is_what_was_written(bilm: PretrainedBiLM, written: Path) -> None:
    found = open_bilm(written)
    assert (found.config, found.vocabulary, found.info) == (bilm.config, bilm.vocabulary, bilm.info)
    assert found.fingerprint == bilm.fingerprint
    expected = flatten(bilm.params)
    for key, leaf in flatten(found.params).items():
        np.testing.assert_array_equal(leaf, expected[key])


def test_other_programs_read_the_tensors(bilm: PretrainedBiLM, written: Path) -> None:
    tensors = load_file(written)
    assert tensors.keys() == flatten(bilm.params).keys()
    np.testing.assert_array_equal(tensors["forward/layer_0/kernel"], bilm.params["forward"]["layer_0"]["kernel"])


def test_the_order_of_the_numbers_in_memory_does_not_matter(bilm: PretrainedBiLM, tmp_path: Path) -> None:
    turned = jax.tree.map(np.asfortranarray, bilm.params)
    for dtype in ("float32", "float16"):
        digest = write_safetensors(tmp_path / "bilm.safetensors", dataclasses.replace(bilm, params=turned), dtype)
        assert read_safetensors(tmp_path / "bilm.safetensors").fingerprint == digest


def test_float16_without_softmax_rounds_once(bilm: PretrainedBiLM, tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    digest = write_safetensors(path, bilm, "float16", softmax=False)
    found = read_safetensors(path)
    assert "softmax" not in found.params and found.vocabulary is None and found.fingerprint == digest
    for key, leaf in flatten(found.params).items():
        assert leaf.dtype == np.float32
        np.testing.assert_array_equal(leaf, flatten(bilm.params)[key].astype(np.float16).astype(np.float32))
    write_safetensors(tmp_path / "again.safetensors", found, "float16")
    assert read_safetensors(tmp_path / "again.safetensors").fingerprint == digest


def test_what_float16_cannot_hold_is_refused(bilm: PretrainedBiLM, tmp_path: Path) -> None:
    params = tree()
    params["forward"]["layer_0"]["bias"] = params["forward"]["layer_0"]["bias"] + np.float32(1e6)
    path = tmp_path / "large.safetensors"
    with pytest.raises(UserError, match="forward/layer_0/bias.*float16 cannot hold"):
        write_safetensors(path, dataclasses.replace(bilm, params=params), "float16")
    assert not path.exists()


def test_another_suffix_is_refused(bilm: PretrainedBiLM, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ends in .safetensors"):
        write_safetensors(tmp_path / "bilm.bin", bilm)


def test_a_safetensors_file_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"weight": np.zeros(3, np.float32)}, path)
    with pytest.raises(UserError, match="not a biLM of elmo_jax"):
        open_bilm(path)


def test_damage_anywhere_is_found(written: Path) -> None:
    whole = written.read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    rng = np.random.default_rng(0)
    places = [*range(0, 8), *rng.integers(8, header, 40), *rng.integers(header, len(whole), 20)]
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        written.write_bytes(flipped)
        with pytest.raises(UserError) as error:
            open_bilm(written)
        assert "\n" not in str(error.value), place
    for size in (0, 5, header, len(whole) - 1):
        written.write_bytes(whole[:size])
        with pytest.raises(UserError, match="bilm.safetensors"):
            open_bilm(written)


def test_a_name_finds_the_packaged_file(bilm: PretrainedBiLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, here = tmp_path / "package", tmp_path / "here"
    package.mkdir()
    here.mkdir()
    write_safetensors(package / "tiny.safetensors", bilm, "float16", softmax=False)
    monkeypatch.setattr(pretrained, "_FOLDER", package)
    monkeypatch.chdir(here)
    assert open_bilm("tiny").info == bilm.info
    with pytest.raises(UserError, match="packaged biLM \\(tiny\\)"):
        open_bilm("tinny")
    (here / "tiny").mkdir()
    with pytest.raises(UserError, match="also of .*/here/tiny"):
        open_bilm("tiny")


def test_without_softmax(bilm: PretrainedBiLM) -> None:
    found = without_softmax(bilm)
    assert found.vocabulary is None and set(found.params) == {"token_encoder", "forward", "backward"}
    assert found.fingerprint == fingerprint(flatten(found.params)) != bilm.fingerprint


def test_the_command_overwrites_no_other_file(
    bilm: PretrainedBiLM, written: Path, capsys: pytest.CaptureFixture
) -> None:
    """An existing file is replaced only if it holds a biLM that is not the one that is read."""
    before = written.read_bytes()
    command = ["export", str(written), "--format", "safetensors", "--softmax", "drop", "--out"]
    assert main([*command, str(written)]) == 2
    assert "is the file of MODEL, which would be overwritten" in capsys.readouterr().err
    other = written.with_name("other.safetensors")
    other.write_text("notes")
    assert main([*command, str(other)]) == 2
    assert "holds something else than a biLM" in capsys.readouterr().err
    assert written.read_bytes() == before and other.read_text() == "notes"
    other.unlink()
    for _ in range(2):
        assert main([*command, str(other)]) == 0
    assert read_safetensors(other).fingerprint == without_softmax(bilm).fingerprint


def test_the_command_writes_no_safetensors_to_a_bucket(written: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["export", str(written), "--format", "safetensors", "--out", "gs://bucket/x.safetensors"]) == 2
    assert "a safetensors file is written to a disk" in capsys.readouterr().err
