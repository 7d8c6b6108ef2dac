"""The exported biLM: golden keys and shapes, bit equality, atomic writing, and what may be wrong with a folder."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from elmo_jax.checkpoints import export
from elmo_jax.checkpoints.export import export_bilm
from elmo_jax.checkpoints.layout import LAYOUT_VERSION, fingerprint, flatten, parameter_shapes, unflatten
from elmo_jax.checkpoints.open import open_bilm
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.errors import UserError

HERE = Path(__file__).parent
ORACLES = HERE.parent / "oracles" / "embedding"

MODEL = ModelConfig(
    CharCNNConfig(embedding_dim=5, filters=((1, 7), (3, 9)), highways=1, max_characters=12),
    LSTMConfig(cells=23, projection=11, layers=2, cell_clip=2.5),
)
# The interface of layout version 1. A change here is a change for every user: raise LAYOUT_VERSION.
GOLDEN = {
    "token_encoder/char_embedding": (261, 5),
    "token_encoder/filter_0/kernel": (1, 5, 7),
    "token_encoder/filter_0/bias": (7,),
    "token_encoder/filter_1/kernel": (3, 5, 9),
    "token_encoder/filter_1/bias": (9,),
    "token_encoder/highway_0/carry/kernel": (16, 16),
    "token_encoder/highway_0/carry/bias": (16,),
    "token_encoder/highway_0/transform/kernel": (16, 16),
    "token_encoder/highway_0/transform/bias": (16,),
    "token_encoder/projection/kernel": (16, 11),
    "token_encoder/projection/bias": (11,),
    "forward/layer_0/kernel": (22, 92),
    "forward/layer_0/bias": (92,),
    "forward/layer_0/projection": (23, 11),
    "forward/layer_1/kernel": (22, 92),
    "forward/layer_1/bias": (92,),
    "forward/layer_1/projection": (23, 11),
    "backward/layer_0/kernel": (22, 92),
    "backward/layer_0/bias": (92,),
    "backward/layer_0/projection": (23, 11),
    "backward/layer_1/kernel": (22, 92),
    "backward/layer_1/bias": (92,),
    "backward/layer_1/projection": (23, 11),
    "softmax/kernel": (6, 11),
    "softmax/bias": (6,),
}
WORDS = ["<S>", "</S>", "<UNK>", "naïve", "a\u2028b", "/\r"]


def tree(seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return unflatten({path: random.standard_normal(shape, np.float32) for path, shape in GOLDEN.items()})


def assert_equal(one: dict[str, Any], two: dict[str, Any]) -> None:
    first, second = flatten(one), flatten(two)
    assert first.keys() == second.keys()
    for path in first:
        assert first[path].dtype == second[path].dtype, path
        assert np.asarray(first[path]).tobytes() == np.asarray(second[path]).tobytes(), path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export_bilm(tmp_path / "out", MODEL, tree(), WORDS, {"steps": 12})
    return tmp_path / "out"


def run(code: str, devices: int = 1) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONPATH=os.pathsep.join([str(HERE), str(HERE.parents[1])]))
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, text=True, capture_output=True, check=False)


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


def limited_child(folder: str) -> None:
    """Files may not grow over 4 kB, as on a disk that is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    try:
        export_bilm(folder, MODEL, tree(1), WORDS)
    except UserError as error:
        print(error)


def test_a_write_that_fails_is_one_line(folder: Path) -> None:
    done = run(f"import test_export; test_export.limited_child({str(folder)!r})")
    assert done.stdout == f"{folder}: the export cannot be written: File too large\n", done.stderr
    assert done.stderr == ""
    assert_equal(open_bilm(folder).params, tree())


def other_tree(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    params = tree()
    change(params)
    return params


@pytest.mark.parametrize(
    ("params", "words", "message"),
    [
        (other_tree(lambda p: p.pop("forward")), WORDS, "parameter 'forward/layer_0/bias' is missing; expected shape"),
        (other_tree(lambda p: p.update(extra=np.zeros(3))), WORDS, "parameter 'extra' has no place in a model of this"),
        (
            other_tree(lambda p: p["softmax"].update(bias=np.zeros(7, np.float32))),
            WORDS,
            r"'softmax/bias' has shape \(7,\), expected \(6,\)",
        ),
        (tree(), WORDS[:-1], "a vocabulary of 5 words for a softmax of 6 rows"),
        (other_tree(lambda p: p.pop("softmax")), WORDS, "a vocabulary of 6 words for a softmax of no rows"),
        (tree(), [*WORDS[:-1], "a\nb"], r"the word 'a\\nb' holds a line break"),
    ],
)
def test_what_does_not_fit_the_model_is_not_exported(
    tmp_path: Path, params: dict[str, Any], words: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        export_bilm(tmp_path / "out", MODEL, params, words)
    assert not (tmp_path / "out").exists()


def rewritten(key: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        values = json.loads((folder / "bilm.json").read_text())
        node = values
        *parents, name = key.split("/", 1) if key.startswith("shapes/") else key.split(".")
        for parent in parents:
            node = node[parent]
        node[name] = value
        (folder / "bilm.json").write_text(json.dumps(values))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rewritten("layout", 2), "bilm.json: layout version 2, this elmo_jax reads 1; export the biLM again"),
        (rewritten("layout", None), "bilm.json: layout version None, this elmo_jax reads 1"),
        (rewritten("model.lstm.cells", 24), r"'backward/layer_0/bias' has shape \(92,\), expected \(96,\)"),
        (rewritten("model.lstm.cell", 24), "bilm.json: model.lstm.cell: no such setting; did you mean"),
        (rewritten("shapes/softmax/kernel", [7, 11]), r"'softmax/bias' has shape \(6,\), expected \(7,\)"),
        (rewritten("info", None), "bilm.json: 'info' is missing or damaged"),
        (rewritten("shapes.softmax/bias", 3), "bilm.json: 'shapes' is damaged"),
        # a few bytes that would make lists of gigabytes
        (rewritten("model.lstm.layers", 3_000_000), "bilm.json: model.lstm.layers: .* at least 1 and at most 1,000"),
        (rewritten("model.char_cnn.highways", 3_000_000), "bilm.json: model.char_cnn.highways: .* at most 1,000"),
        (rewritten("model.char_cnn.filters", [[1, 1]] * 1001), "model.char_cnn.filters: expected 1 to 1000 pairs"),
        (lambda f: (f / "bilm.json").write_text(" " * (1 << 24) + "{}"), "bilm.json: cannot be read .larger than 16"),
        (lambda f: (f / "bilm.json").write_text("[" * 100_000), "bilm.json: cannot be read"),
        (rewritten("fingerprint", "0"), "the parameters are not those that were exported"),
        (lambda f: (f / "bilm.json").write_text("{"), "bilm.json: cannot be read"),
        (lambda f: (f / "bilm.json").write_text("[]"), "bilm.json: layout version None"),
        (lambda f: (f / "bilm.json").unlink(), "out: no biLM here; expected the name of a packaged biLM"),
        (lambda f: (f / "vocabulary.txt").unlink(), "vocabulary.txt: no such file"),
        (lambda f: (f / "vocabulary.txt").write_text("<S>\n"), "vocabulary.txt: not the vocabulary that was exported"),
        (lambda f: shutil.rmtree(f / "parameters"), "parameters: no such folder"),
        (lambda f: shutil.rmtree(f), "out: no such file or folder; expected the name of a packaged biLM"),
    ],
)
def test_a_folder_that_is_wrong(folder: Path, change: Callable[[Path], Any], message: str) -> None:
    change(folder)
    with pytest.raises(UserError, match=message) as caught:
        open_bilm(folder)
    assert "\n" not in str(caught.value)


def test_any_damage_of_the_parameters_is_found(folder: Path) -> None:
    """Each file that is deleted, truncated or has one flipped bit gives an error or the same numbers."""
    found: list[Path] = []
    files = [path for path in (folder / "parameters").rglob("*") if path.is_file()]
    for path in files:
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        for damaged in (None, b"", content[: len(content) // 2], content[:-1], bytes(flipped)):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            try:
                assert_equal(open_bilm(folder).params, tree())
            except UserError as error:
                found.append(path)
                assert re.match(f"{folder}.*export.* again$", str(error)), error
            path.write_bytes(content)
    assert (
        found.count(max(files, key=lambda path: path.stat().st_size)) >= 4
    )  # truncations within the data, except perhaps at the last byte


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
