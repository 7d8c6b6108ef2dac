"""The exported biLM: golden keys and shapes, bit equality, atomic writing, and what may be wrong with a folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from elmo_jax.checkpoints import export
from elmo_jax.checkpoints.export import PretrainedBiLM, export_bilm
from elmo_jax.checkpoints.layout import LAYOUT_VERSION, fingerprint, flatten, parameter_shapes
from elmo_jax.checkpoints.open import open_bilm
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.errors import UserError
from tests.checkpoints.exports import GOLDEN, HERE, MODEL, WORDS, assert_equal, run, tree

ORACLES = HERE.parent / "oracles" / "embedding"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export_bilm(tmp_path / "out", MODEL, tree(), WORDS, {"steps": 12})
    return tmp_path / "out"


def test_the_golden_list_of_keys_and_shapes(folder: Path) -> None:
    assert LAYOUT_VERSION == 1
    assert parameter_shapes(MODEL, 6) == GOLDEN
    assert {path: leaf.shape for path, leaf in flatten(open_bilm(folder).params).items()} == GOLDEN
    description = json.loads((folder / "bilm.json").read_text())
    assert {path: tuple(shape) for path, shape in description["shapes"].items()} == GOLDEN
    assert description["layout"] == 1
    assert description["parameters"] == sum(leaf.size for leaf in flatten(tree()).values())


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


def test_the_model_has_the_golden_tree() -> None:
    """The tree of the layout is the tree of the model's parameters."""
    bilm = pytest.importorskip("elmo_jax.model.bilm", reason="the model is not there")
    shapes = jax.eval_shape(lambda: bilm.initial_params(bilm.BiLM(MODEL, 6), jax.random.key(0)))
    assert {path: leaf.shape for path, leaf in flatten(shapes).items()} == GOLDEN


def test_what_is_loaded_is_what_was_exported(folder: Path) -> None:
    bilm = open_bilm(folder)
    assert bilm.config == MODEL
    assert bilm.vocabulary == WORDS
    assert bilm.info == {"steps": 12}
    assert bilm.fingerprint == fingerprint(flatten(tree()))
    assert_equal(bilm.params, tree())
    assert type(bilm.params["forward"]["layer_0"]) is dict
    assert open_bilm(str(folder)).fingerprint == bilm.fingerprint


def test_jax_arrays_are_exported_and_the_folder_tells_nothing_of_the_machine(tmp_path: Path) -> None:
    params = tree()
    del params["softmax"]
    digest = export_bilm(tmp_path / "out", MODEL, jax.tree.map(jnp.asarray, params))
    assert open_bilm(tmp_path / "out").fingerprint == digest == fingerprint(flatten(params))
    assert open_bilm(tmp_path / "out").vocabulary is None
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or str(tmp_path).encode() not in path.read_bytes(), path


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


def test_an_export_in_a_run_folder(folder: Path, tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    (run_folder / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match=f"{run_folder}: no biLM here; expected the name of a packaged biLM"):
        open_bilm(run_folder)
    shutil.move(folder, run_folder / "export")
    assert open_bilm(run_folder).vocabulary == WORDS


@pytest.mark.parametrize("name", ["skip", "no_skip"])
def test_a_published_bilm_becomes_an_export(name: str, tmp_path: Path) -> None:
    bilm = open_bilm((ORACLES / name / "options.json", ORACLES / name / "weights.hdf5"))
    assert bilm.vocabulary is None and "softmax" not in bilm.params
    assert export_bilm(tmp_path / "out", bilm.config, bilm.params) == bilm.fingerprint
    assert_equal(open_bilm(tmp_path / "out").params, bilm.params)


def test_an_older_export_is_replaced_and_nothing_else_is(folder: Path, tmp_path: Path) -> None:
    (tmp_path / ".out.tmp" / "x").mkdir(parents=True)  # of an export that was killed
    export_bilm(folder, MODEL, tree(1), WORDS)
    assert_equal(open_bilm(folder).params, tree(1))
    (tmp_path / "empty").mkdir()
    export_bilm(tmp_path / "empty", MODEL, tree(), WORDS)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    for name in ("mine", "mine/thesis.txt"):
        with pytest.raises(UserError, match=f"{name}: holds something else than an export"):
            export_bilm(tmp_path / name, MODEL, tree(), WORDS)
    assert sorted(os.listdir(tmp_path)) == ["empty", "mine", "out"]
    assert os.listdir(tmp_path / "mine") == ["thesis.txt"]


@pytest.mark.parametrize("name", ["thesis.txt", "notes/thesis.txt", "parameters/d/thesis.txt"])
def test_a_file_that_was_put_into_an_export_is_not_deleted(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("once")
    with pytest.raises(UserError, match=f"out: holds {name}, which is not a part of the export") as caught:
        export_bilm(folder, MODEL, tree(1), WORDS)
    assert "\n" not in str(caught.value)
    assert (folder / name).read_text() == "once"
    assert_equal(open_bilm(folder).params, tree())
    (folder / name).unlink()
    export_bilm(folder, MODEL, tree(1), WORDS)
    assert_equal(open_bilm(folder).params, tree(1))


def test_an_export_of_an_older_version_is_replaced(folder: Path) -> None:
    """Its description does not list the files."""
    description = json.loads((folder / "bilm.json").read_text())
    assert sorted(path for path in description.pop("files") if "/" not in path) == ["bilm.json", "vocabulary.txt"]
    (folder / "bilm.json").write_text(json.dumps(description))
    (folder / "thesis.txt").touch()
    with pytest.raises(UserError, match="out: holds thesis.txt"):
        export_bilm(folder, MODEL, tree(1), WORDS)
    (folder / "thesis.txt").unlink()
    export_bilm(folder, MODEL, tree(1), WORDS)
    assert_equal(open_bilm(folder).params, tree(1))


def test_an_export_that_was_killed_between_its_renames_is_not_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.rename(folder.with_name(".out.old"))

    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(export, "_write_params", full)
    with pytest.raises(UserError, match="No space left on device"):
        export_bilm(folder, MODEL, tree(1), WORDS)
    assert_equal(open_bilm(folder).params, tree())


def test_an_export_that_fails_leaves_the_older_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(export, "_write_params", full)
    with pytest.raises(UserError, match="out: the export cannot be written: No space left on device"):
        export_bilm(folder, MODEL, tree(1), WORDS)
    assert_equal(open_bilm(folder).params, tree())
    assert os.listdir(folder.parent) == ["out"]


def test_nothing_of_training_is_imported(folder: Path) -> None:
    code = f"""
import sys
from elmo_jax.checkpoints.open import open_bilm
open_bilm({str(folder)!r})
print([name for name in sys.modules if name.startswith(("elmo_jax.training", "elmo_jax.data", "optax", "tensorflow"))])
"""
    done = run(code)
    assert done.stdout == "[]\n", done.stdout + done.stderr
    assert done.stderr == ""


def sharded_child(folder: str) -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    everywhere = jax.NamedSharding(mesh, jax.sharding.PartitionSpec())
    print(export_bilm(folder, MODEL, jax.device_put(tree(), everywhere), WORDS))


def test_an_export_of_8_devices_loads_on_these(tmp_path: Path) -> None:
    done = run(f"import test_export; test_export.sharded_child({str(tmp_path / 'out')!r})", devices=8)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    bilm = open_bilm(tmp_path / "out")
    assert done.stdout.strip() == bilm.fingerprint
    assert_equal(bilm.params, tree())


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


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    for wrong in (lambda leaf: leaf * np.nan, lambda leaf: leaf.astype(int)):
        with pytest.raises(UserError, match="expected floating-point numbers, all finite"):
            export_bilm(tmp_path / "out", MODEL, jax.tree.map(wrong, tree()))
    with pytest.raises(UserError, match="info cannot be written as JSON"):
        export_bilm(tmp_path / "out", MODEL, tree(), info={"x": np.float32(1)})
    assert not list(tmp_path.iterdir())


def test_a_link_stays_and_the_export_that_it_names_is_replaced(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("out")
    for steps in (13, 14):
        export_bilm(tmp_path / "latest", MODEL, tree(), WORDS, {"steps": steps})
        assert (tmp_path / "latest").is_symlink() and open_bilm(folder).info["steps"] == steps
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "out"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("config.json", "encoder.pkl"), "a model of ELMoForManyLangs, which has another architecture"),
        (("options.json", "model.hdf5"), "published weights; give .*/model.hdf5 --options .*/options.json"),
        (("model.ckpt-10.index", "options.json"), "a TensorFlow checkpoint of bilm-tf; dump its weights"),
        (("config.json", "pytorch_model.bin"), "config.json: not the config.json of a run .damaged, or of another"),
    ],
)
def test_models_of_other_programs_are_named(tmp_path, names, expected):
    for name in names:
        (tmp_path / name).write_text('{"model_type": "x"}')
    with pytest.raises(UserError, match=expected):
        open_bilm(tmp_path)
    (tmp_path / "196.zip").touch()
    with pytest.raises(UserError, match="196.zip: an archive; unpack it"):
        open_bilm(tmp_path / "196.zip")
