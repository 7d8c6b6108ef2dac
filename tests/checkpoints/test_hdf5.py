"""The published format: bit-equal in and out, every architecture, and files that are wrong or ill-meant."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from elmo_jax.checkpoints.hdf5 import published_from_tree, read_hdf5, tree_from_published, write_hdf5
from elmo_jax.checkpoints.layout import flatten, parameter_shapes
from elmo_jax.checkpoints.options import read_options
from elmo_jax.config import ORIGINAL_FILTERS, CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.errors import UserError
from tests.checkpoints.small_models import NO_PROJECTIONS, ONE_LAYER, SMALL, assert_equal, random_tree

pytestmark = pytest.mark.quick

ORACLES = Path(__file__).parents[1] / "oracles"


PUBLISHED = Path(__file__).parents[3] / "shared" / "oracles" / "published"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    options, weights = tmp_path / "options.json", tmp_path / "weights.hdf5"
    write_hdf5(options, weights, SMALL, random_tree(SMALL))
    return options, weights


@pytest.mark.parametrize("name", ["embedding/skip", "embedding/no_skip", "published/bilm_tf", "published/allennlp"])
def test_weights_of_the_original_go_in_and_out(name: str, tmp_path: Path) -> None:
    folder = ORACLES / name if name.startswith("embedding") else PUBLISHED / name.removeprefix("published/")
    if not folder.is_dir():
        pytest.skip(f"{name}: the released test fixtures are not here; they are not ours to distribute")
    weights = next(folder.glob("*weights.hdf5"))
    model, params = read_hdf5(folder / "options.json", weights)
    assert model.lstm.skip_connections == (name in ("embedding/skip", "published/allennlp"))
    write_hdf5(tmp_path / "o.json", tmp_path / "w.hdf5", model, params)
    again, params_again = read_hdf5(tmp_path / "o.json", tmp_path / "w.hdf5")
    assert again == model
    assert_equal(params_again, params)
    with h5py.File(weights) as one, h5py.File(tmp_path / "w.hdf5") as two:
        names: list[str] = []
        one.visititems(lambda path, node: names.append(path) if isinstance(node, h5py.Dataset) else None)
        assert len(names) == len(flatten(params))
        for path in names:
            assert one[path].shape == two[path].shape and one[path][()].tobytes() == two[path][()].tobytes()


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_floats_are_converted_with_a_line(files: tuple[Path, Path], dtype: str, caplog: Any) -> None:
    params = read_hdf5(*files)[1]
    with h5py.File(files[1], "r+") as file:
        names: list[str] = []
        file.visititems(lambda path, node: names.append(path) if isinstance(node, h5py.Dataset) else None)
        for name in names:
            data = file[name][()].astype(dtype)
            del file[name]
            file[name] = data
    assert caplog.messages == []
    rounded = {path: leaf.astype(dtype).astype(np.float32) for path, leaf in flatten(params).items()}
    actual = flatten(read_hdf5(*files)[1])
    assert {leaf.dtype for leaf in actual.values()} == {np.dtype(np.float32)}
    assert_equal(actual, rounded)
    assert caplog.messages == [f"{files[1]}: holds {dtype} numbers, which are converted to float32"]


@pytest.mark.parametrize("model", [SMALL, NO_PROJECTIONS, ONE_LAYER], ids=["small", "no projections", "one layer"])
def test_any_architecture_goes_out_and_in(model: ModelConfig, tmp_path: Path) -> None:
    params = random_tree(model, 17)
    write_hdf5(tmp_path / "o.json", tmp_path / "w.hdf5", model, params)
    actual, found_params = read_hdf5(tmp_path / "o.json", tmp_path / "w.hdf5")
    assert actual == model
    del params["softmax"]  # never in the file
    assert_equal(found_params, params)


def test_names_and_orientation() -> None:
    params = random_tree(SMALL, 17)
    arrays = published_from_tree(params)
    assert arrays["char_embed"].shape == (261, 5)
    assert arrays["CNN/W_cnn_2"].shape == (1, 4, 5, 20)
    np.testing.assert_array_equal(arrays["CNN/W_cnn_2"][0, 3, 1], params["token_encoder"]["filter_2"]["kernel"][3, 1])
    assert arrays["CNN_high_1/W_carry"] is not arrays["CNN_high_1/W_transform"]
    np.testing.assert_array_equal(arrays["CNN_high_1/W_carry"], params["token_encoder"]["highway_1"]["carry"]["kernel"])
    lstm = "RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell"
    np.testing.assert_array_equal(arrays[f"{lstm}/W_0"], params["backward"]["layer_0"]["kernel"])
    assert arrays[f"{lstm}/W_0"].shape == (22, 92)
    assert arrays[f"{lstm}/W_P_0"].shape == (23, 11)
    assert arrays["softmax/W"].shape == (17, 11)
    assert_equal(tree_from_published(arrays), params)


def test_the_trajectory_of_the_original_trainer_is_read() -> None:
    model = read_options(ORACLES / "training" / "options.json")
    with np.load(ORACLES / "training" / "trajectory.npz") as file:
        arrays = {name.removeprefix("init/"): file[name] for name in file.files if name.startswith("init/")}
    params = tree_from_published(arrays)
    assert {path: leaf.shape for path, leaf in flatten(params).items()} == parameter_shapes(model, 400)
    assert published_from_tree(params).keys() == arrays.keys()


@pytest.mark.parametrize(
    ("cells", "projection", "highways", "parameters"),
    [(1024, 128, 1, 13_593_296), (2048, 256, 1, 28_027_728), (4096, 512, 2, 93_600_848)],
    ids=["small", "medium", "original"],
)
def test_the_published_sizes(cells: int, projection: int, highways: int, parameters: int) -> None:
    model = ModelConfig(CharCNNConfig(filters=ORIGINAL_FILTERS, highways=highways), LSTMConfig(cells, projection))
    assert sum(map(math.prod, parameter_shapes(model).values())) == parameters
    if cells == 4096:
        assert sum(map(math.prod, parameter_shapes(model, 793_471).values())) == 500_651_471


def test_both_counts_of_characters_and_absent_keys(files: tuple[Path, Path]) -> None:
    options, weights = files
    values = json.loads(options.read_text())
    assert values["char_cnn"]["n_characters"] == 262
    values["char_cnn"]["n_characters"] = 261
    options.write_text(json.dumps(values))
    assert_equal(read_hdf5(options, weights)[1], random_tree(SMALL))
    del values["lstm"]["cell_clip"], values["lstm"]["use_skip_connections"], values["dropout"]
    values["lstm"]["proj_clip"] = 3  # a whole number, as published
    options.write_text(json.dumps(values))
    lstm = read_options(options).lstm
    assert (lstm.cell_clip, lstm.projection_clip, lstm.skip_connections) == (0.0, 3.0, False)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("char_cnn.n_characters", 260, "'char_cnn.n_characters': expected 261 or 262, got 260"),
        ("lstm.dim", None, "'lstm.dim' is missing"),
        ("lstm.dim", "23", "'lstm.dim': expected int, got '23'"),
        ("lstm.dim", True, "'lstm.dim': expected int, got True"),
        ("lstm.dim", 1 << 40, "'lstm.dim': expected a number of at least 1 and at most 1,048,576, got"),
        ("lstm.n_layers", 1 << 20, "'lstm.n_layers': expected a number of at least 1 and at most 1,000"),
        ("char_cnn.n_highway", 1 << 20, "'char_cnn.n_highway': expected a number of at least 0 and at most 1,000"),
        ("lstm.n_layers", 0, "'lstm.n_layers': expected a number of at least 1"),
        ("lstm.cell_clip", -1, "'lstm.cell_clip': expected a number of at least 0.*, got -1"),
        ("lstm.use_skip_connections", 1, "'lstm.use_skip_connections': expected bool, got 1"),
        ("char_cnn.filters", [[1, 2], [3]], r"'char_cnn.filters': expected pairs \(width, number\)"),
        ("char_cnn.activation", "gelu", "'char_cnn.activation': expected 'relu' or 'tanh', got 'gelu'"),
        ("lstm", [], "'lstm.dim' is missing"),
        ("bidirectional", 2, "'bidirectional': expected true or false, got 2"),
    ],
)
def test_options_that_are_wrong(files: tuple[Path, Path], key: str, value: Any, message: str) -> None:
    options, _ = files
    values = json.loads(options.read_text())
    node = values
    *parents, name = key.split(".")
    for parent in parents:
        node = node[parent]
    node[name] = value
    options.write_text(json.dumps(values))
    with pytest.raises(UserError, match=f"options.json: .*{message}") as caught:
        read_options(options)
    assert "\n" not in str(caught.value)


def test_weights_of_one_direction_are_refused(files: tuple[Path, Path]) -> None:
    options, weights = files
    options.write_text(json.dumps(json.loads(options.read_text()) | {"bidirectional": False}))
    with pytest.raises(
        UserError, match="options.json: 'bidirectional': expected true, got False; HDF5 weights have two"
    ):
        read_hdf5(options, weights)


@pytest.mark.parametrize("content", [b"", b"[", b"\xff", b"[" * 100_000, b" " * (2 << 20), b"[]", b"NaN"])
def test_options_that_are_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "options.json").write_bytes(content)
    with pytest.raises(UserError, match="options.json: "):
        read_options(tmp_path / "options.json")
    with pytest.raises(UserError, match="nowhere.json: cannot be read"):
        read_options(tmp_path / "nowhere.json")


def test_a_tree_of_another_model_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"parameter 'backward/layer_0/bias' has shape \(32,\), expected \(92,\)"):
        write_hdf5(tmp_path / "o", tmp_path / "w", SMALL, random_tree(ONE_LAYER))
    with pytest.raises(UserError, match="cannot be written"):
        write_hdf5(tmp_path / "o", tmp_path / "none" / "w", SMALL, random_tree(SMALL))
    assert list(tmp_path.iterdir()) == []


def test_large_options_are_refused_whatever_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text("{}" + " " * (1 << 20))
    with pytest.raises(UserError, match="larger than 1 MB"):
        read_options(tmp_path / "options.json")
