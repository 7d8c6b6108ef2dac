"""The export: golden keys and shapes, bit equality, float16, what is replaced, and which packages are imported."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

from elmo_jax import files, pretrained
from elmo_jax.checkpoints.export import NAME, PretrainedBiLM, export_bilm
from elmo_jax.checkpoints.layout import LAYOUT_VERSION, fingerprint, flatten, parameter_shapes
from elmo_jax.checkpoints.open import open_bilm
from elmo_jax.cli.main import main
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.errors import UserError
from tests.checkpoints.exports import GOLDEN, HERE, MODEL, WORDS, assert_equal, tree

pytestmark = pytest.mark.quick

ORACLES = HERE.parent / "oracles" / "embedding"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export_bilm(tmp_path / "out", MODEL, tree(), WORDS, {"steps": 12})
    return tmp_path / "out"


def test_the_golden_list_of_keys_and_shapes(folder: Path) -> None:
    """Other programs read the tensors, and the description in the metadata."""
    assert LAYOUT_VERSION == 1
    assert parameter_shapes(MODEL, 6) == GOLDEN
    assert os.listdir(folder) == [NAME]
    (folder.parent / "other").touch()
    assert (folder / NAME).stat().st_mode == (folder.parent / "other").stat().st_mode
    with safe_open(str(folder / NAME), "numpy") as file:
        assert {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()} == GOLDEN
        np.testing.assert_array_equal(file.get_tensor("softmax/kernel"), tree()["softmax"]["kernel"])
        description = json.loads(file.metadata()["elmo_jax"])
    assert description["layout"] == 1 and description["vocabulary"] == WORDS
    assert description["model"]["lstm"]["cells"] == 23


def test_no_projections_where_the_sizes_agree() -> None:
    model = ModelConfig(CharCNNConfig(filters=((1, 11),), highways=0), LSTMConfig(cells=11, projection=11, layers=1))
    assert sorted(parameter_shapes(model)) == [
        "backward/layer_0/bias",
        "backward/layer_0/kernel",
        "forward/layer_0/bias",
        "forward/layer_0/kernel",
        "token_encoder/char_embedding",
        "token_encoder/filter_0/bias",
        "token_encoder/filter_0/kernel",
    ]


def test_what_is_loaded_is_what_was_exported(folder: Path, tmp_path: Path) -> None:
    for source in (folder, str(folder), folder / NAME):
        bilm = open_bilm(source)
        assert (bilm.config, bilm.vocabulary, bilm.info) == (MODEL, WORDS, {"steps": 12})
        assert bilm.fingerprint == fingerprint(flatten(tree()))
        assert_equal(bilm.params, tree())
        assert type(bilm.params["forward"]["layer_0"]) is dict
    assert str(tmp_path).encode() not in (folder / NAME).read_bytes()
    small = bilm.without_softmax()
    assert small.vocabulary is None and set(small.params) == {"token_encoder", "forward", "backward"}
    assert small.fingerprint == fingerprint(flatten(small.params)) != bilm.fingerprint


def test_jax_arrays_and_any_order_in_memory_are_exported(tmp_path: Path) -> None:
    params = tree()
    del params["softmax"]
    for number, change in enumerate((jnp.asarray, np.asfortranarray)):
        path = tmp_path / f"{number}.safetensors"
        assert export_bilm(path, MODEL, jax.tree.map(change, params)) == fingerprint(flatten(params))
        assert open_bilm(path).vocabulary is None
        assert_equal(open_bilm(path).params, params)


def test_the_fingerprint_sees_every_difference() -> None:
    flat = flatten(tree())
    changed = [fingerprint(flat)]
    bias = flat["softmax/bias"]
    for other in (bias.view(np.int32), bias.reshape(1, -1), np.nextafter(bias, 9, dtype=np.float32)):
        changed.append(fingerprint({**flat, "softmax/bias": other}))
    changed.append(fingerprint({**{k: v for k, v in flat.items() if k != "softmax/bias"}, "softmax/bios": bias}))
    assert len(set(changed)) == 5
    assert fingerprint(dict(reversed(flat.items()))) == changed[0]
    assert fingerprint({**flat, "softmax/bias": bias.astype(">f4")}) == changed[0]


def test_float16_rounds_once(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.safetensors"
    digest = export_bilm(path, MODEL, tree(), WORDS, dtype="float16")
    actual = open_bilm(path)
    assert actual.fingerprint == digest
    assert_equal(actual.params, jax.tree.map(lambda leaf: leaf.astype(np.float16).astype(np.float32), tree()))
    assert path.stat().st_size < 0.6 * (folder / NAME).stat().st_size
    assert export_bilm(path, MODEL, actual.params, WORDS, dtype="float16") == digest
    large = tree()
    large["forward"]["layer_0"]["bias"] += np.float32(1e6)
    with pytest.raises(UserError, match="'forward/layer_0/bias' .float32.: expected .* all finite in float16"):
        export_bilm(path, MODEL, large, WORDS, dtype="float16")


def test_an_export_in_a_run_folder(folder: Path, tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    (run_folder / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match=f"{run_folder}: no biLM here; expected the name of a packaged biLM"):
        open_bilm(run_folder)
    folder.rename(run_folder / "export")
    assert open_bilm(run_folder).vocabulary == WORDS


@pytest.mark.parametrize("name", ["skip", "no_skip"])
def test_a_published_bilm_becomes_an_export(name: str, tmp_path: Path) -> None:
    bilm = open_bilm((ORACLES / name / "options.json", ORACLES / name / "weights.hdf5"))
    assert bilm.vocabulary is None and "softmax" not in bilm.params
    assert export_bilm(tmp_path / "out", bilm.config, bilm.params) == bilm.fingerprint
    assert_equal(open_bilm(tmp_path / "out").params, bilm.params)


def test_an_older_export_is_replaced_and_nothing_else_is(folder: Path, tmp_path: Path) -> None:
    (folder / "thesis.txt").write_text("once")
    (tmp_path / "latest").symlink_to("out")
    for seed in (1, 2):
        export_bilm(tmp_path / "latest", MODEL, tree(seed), WORDS)
        assert_equal(open_bilm(folder).params, tree(seed))
    assert sorted(os.listdir(folder)) == [NAME, "thesis.txt"] and (tmp_path / "latest").is_symlink()
    with pytest.raises(UserError, match="thesis.txt: is a file; give a folder, or the name of a file that ends in"):
        export_bilm(folder / "thesis.txt", MODEL, tree(), WORDS)
    other = folder / "other.safetensors"
    other.write_text("notes")
    with pytest.raises(UserError, match="other.safetensors: holds something else than an export"):
        export_bilm(other, MODEL, tree(), WORDS)
    assert other.read_text() == "notes"


def test_an_export_that_fails_leaves_the_older_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match="bilm.safetensors: cannot be .*No space left on device"):
        export_bilm(folder, MODEL, tree(1), WORDS)
    assert_equal(open_bilm(folder).params, tree())
    assert os.listdir(folder) == [NAME]


def test_an_export_of_4_devices_loads_on_these(tmp_path: Path) -> None:
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    everywhere = jax.NamedSharding(mesh, jax.sharding.PartitionSpec())
    digest = export_bilm(tmp_path / "out", MODEL, jax.device_put(tree(), everywhere), WORDS)
    assert digest == fingerprint(flatten(tree()))
    assert_equal(open_bilm(tmp_path / "out").params, tree())


def test_a_bilm_is_shown_in_a_few_lines(tmp_path: Path) -> None:
    params = tree()
    words = [f"word{i}" for i in range(len(params["softmax"]["bias"]))]
    info = {"experiment": "mine", "steps": 12, "tokens_seen": 3456, "heldout_perplexity": {"average": 78.9}}
    export_bilm(tmp_path / "bilm", MODEL, params, words, {**info, "corpus_sources": ["a.txt", "sotu"]})
    shown = repr(open_bilm(tmp_path / "bilm"))
    assert len(shown) < 500 and shown.count("\n") == 4
    for part in (
        f"softmax over {len(words)} words",
        "23 cells",
        "12 steps, 3,456 tokens",
        "perplexity 78.9",
        "a.txt, sotu",
    ):
        assert part in shown
    later = {"experiment": "tuned", "steps": 5, "tokens_seen": 60, "finetuned_from": {"fingerprint": "0", **info}}
    shown = repr(PretrainedBiLM(MODEL, params, words, later, "0" * 64))
    stages = (
        "trained in the run 'tuned': 5 steps, 60 tokens",
        "before that, trained in the run 'mine': 12 steps, 3,456 tokens",
    )
    assert "\n  ".join(stages) in shown


@pytest.mark.parametrize(
    "info",
    [
        {"finetuned_from": "other"},
        {"heldout_perplexity": 12.3},
        {"heldout_perplexity": {}},
        {"steps": "many"},
        {"steps": None},
        {"steps": 1, "tokens_seen": "all"},
        {"sources": ["wiki"]},
        {"sources": {"a": 1}},
    ],
)
def test_a_bilm_with_a_history_of_another_form_is_shown_too(info: dict) -> None:
    shown = repr(PretrainedBiLM(MODEL, tree(), None, info, "0" * 64))
    assert shown.startswith("PretrainedBiLM 000000000000: ")


def test_a_name_finds_the_packaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, here = tmp_path / "package", tmp_path / "here"
    here.mkdir()
    export_bilm(package / "tiny.safetensors", MODEL, tree(), WORDS, {"steps": 7})
    monkeypatch.setattr(pretrained, "_FOLDER", package)
    monkeypatch.chdir(here)
    assert open_bilm("tiny").info == {"steps": 7}
    with pytest.raises(UserError, match="packaged biLM \\(tiny\\)"):
        open_bilm("tinny")
    (here / "tiny").mkdir()
    with pytest.raises(UserError, match="also of .*/here/tiny"):
        open_bilm("tiny")


def test_the_command_overwrites_no_other_file(folder: Path, capsys: pytest.CaptureFixture) -> None:
    """An existing file is replaced only if it holds a biLM that is not the one that is read."""
    command = ["export", str(folder), "--softmax", "drop", "--dtype", "float16", "--out"]
    before = (folder / NAME).read_bytes()
    (folder / "link.safetensors").symlink_to(NAME)
    for same in (folder, folder / NAME, folder / "link.safetensors"):
        assert main([*command, str(same)]) == 2
        assert "is the export that is read, which would be overwritten" in capsys.readouterr().err
    assert (folder / NAME).read_bytes() == before
    other = folder / "other.safetensors"
    other.write_text("notes")
    assert main([*command, str(other)]) == 2
    assert "holds something else than an export" in capsys.readouterr().err
    other.unlink()
    for _ in range(2):
        assert main([*command, str(other)]) == 0
    actual = open_bilm(other)
    assert actual.vocabulary is None and "softmax" not in actual.params and actual.info == {"steps": 12}


@pytest.mark.parametrize("place", ["", "export", f"export/{NAME}"])
def test_the_command_gives_no_run_another_model(
    folder: Path, tmp_path: Path, place: str, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "config.json").touch()
    assert main(["export", str(folder), "--out", str(tmp_path / place)]) == 2
    assert f"would take the place of the model of the run {tmp_path}" in capsys.readouterr().err
    assert main(["export", str(folder), "--out", str(tmp_path / "small.safetensors")]) == 0


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("config.json", "encoder.pkl"), "a model of ELMoForManyLangs, which has another architecture"),
        (("config.json", "weights.th"), "a model of AllenNLP or Transformers; of an ELMo in it, give the options and"),
        (
            ("options.json", "a.hdf5", "b.hdf5"),
            r"has several weights \(a.hdf5, b.hdf5\); name one, with --options .*/options.json",
        ),
        (("model.ckpt-10.meta", "options.json"), "a checkpoint of bilm-tf without its .index; get that file too"),
        (
            ("config.json", "other.bin"),
            "config.json: damaged, or written by another version or program; restore it, or start",
        ),
    ],
)
def test_models_of_other_programs_are_named(tmp_path, names, expected):
    for name in names:
        (tmp_path / name).write_text('{"model_type": "x"}')
    with pytest.raises(UserError, match=expected):
        open_bilm(tmp_path)
    (tmp_path / "196.tgz").touch()
    with pytest.raises(UserError, match="196.tgz: an archive; unpack it"):
        open_bilm(tmp_path / "196.tgz")
    (tmp_path / "196.zip").touch()
    with pytest.raises(UserError, match="196.zip: the zip file is damaged or cut short"):
        open_bilm(tmp_path / "196.zip")
