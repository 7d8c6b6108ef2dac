"""The published format: bit-equal in and out, every architecture, and files that are wrong or ill-meant."""

from __future__ import annotations

import json
import math
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from elmo_jax.checkpoints.hdf5 import published_from_tree, published_name, read_hdf5, tree_from_published, write_hdf5
from elmo_jax.checkpoints.layout import flatten, parameter_shapes, unflatten
from elmo_jax.checkpoints.options import read_options, write_options
from elmo_jax.config import ORIGINAL_FILTERS, CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.errors import UserError

ORACLES = Path(__file__).parents[1] / "oracles"
PUBLISHED = Path(__file__).parents[3] / "shared" / "oracles" / "published"

# Every dimension has its own size: 40 filters, 11 projection, 23 cells.
SMALL = ModelConfig(
    CharCNNConfig(embedding_dim=5, filters=((1, 7), (2, 13), (4, 20)), highways=2, max_characters=9),
    LSTMConfig(cells=23, projection=11, layers=2),
)
NO_PROJECTIONS = ModelConfig(
    CharCNNConfig(embedding_dim=4, filters=((3, 5), (2, 6)), highways=0, activation="tanh", max_characters=12),
    LSTMConfig(cells=11, projection=11, layers=3, cell_clip=0.0, projection_clip=0.0, skip_connections=False),
    dropout=0.5,
)
ONE_LAYER = ModelConfig(
    CharCNNConfig(embedding_dim=3, filters=((1, 6),), highways=3, max_characters=50), LSTMConfig(8, 4, 1, 1.5, 2.5)
)


def random_tree(model: ModelConfig, vocabulary: int | None = None) -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes = parameter_shapes(model, vocabulary)
    return unflatten({path: random.standard_normal(shape, np.float32) for path, shape in shapes.items()})


def assert_equal(one: dict[str, Any], two: dict[str, Any]) -> None:
    first, second = flatten(one), flatten(two)
    assert first.keys() == second.keys()
    for path in first:
        assert first[path].dtype == second[path].dtype and first[path].shape == second[path].shape, path
        assert first[path].tobytes() == second[path].tobytes(), path


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


@pytest.mark.parametrize("model", [SMALL, NO_PROJECTIONS, ONE_LAYER], ids=["small", "no projections", "one layer"])
def test_any_architecture_goes_out_and_in(model: ModelConfig, tmp_path: Path) -> None:
    params = random_tree(model, 17)
    write_hdf5(tmp_path / "o.json", tmp_path / "w.hdf5", model, params)
    found, found_params = read_hdf5(tmp_path / "o.json", tmp_path / "w.hdf5")
    assert found == model
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
    with pytest.raises(UserError, match="array 'CNN/W_cnn_x': the published format has no such name"):
        tree_from_published({"CNN/W_cnn_x": np.zeros(3)})


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
        ("char_cnn.n_characters", 260, "'char_cnn.n_characters': expected 261 or 262, found 260"),
        ("lstm.dim", None, r"'lstm.dim': expected a whole number, at most \d+, found nothing"),
        ("lstm.dim", "23", r"'lstm.dim': expected a whole number, at most \d+, found '23'"),
        ("lstm.dim", True, "'lstm.dim': expected a whole number"),
        ("lstm.dim", 1 << 40, "'lstm.dim': expected a whole number"),
        ("lstm.n_layers", 1 << 20, "'lstm.n_layers': expected a whole number, at most 1000"),
        ("char_cnn.n_highway", 1 << 20, "'char_cnn.n_highway': expected a whole number, at most 1000"),
        ("lstm.n_layers", 0, "lstm.layers: expected a number of at least 1"),
        ("lstm.cell_clip", -1, "'lstm.cell_clip': expected a number, at least 0, found -1"),
        ("lstm.use_skip_connections", 1, "'lstm.use_skip_connections': expected true or false, found 1"),
        ("char_cnn.filters", [[1, 2], [3]], r"'char_cnn.filters': expected a list of pairs \[width, number\]"),
        ("char_cnn.activation", "gelu", "char_cnn.activation: expected 'relu' or 'tanh', got 'gelu'"),
        ("lstm", [], "'lstm.dim': expected a whole number"),
        ("bidirectional", False, "'bidirectional': expected true, found False"),
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


@pytest.mark.parametrize("content", [b"", b"[", b"\xff", b"[" * 100_000, b" " * (2 << 20), b"[]", b"NaN"])
def test_options_that_are_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "options.json").write_bytes(content)
    with pytest.raises(UserError, match="options.json: "):
        read_options(tmp_path / "options.json")
    with pytest.raises(UserError, match="nowhere.json: cannot be read"):
        read_options(tmp_path / "nowhere.json")


def edit(weights: Path, change: Callable[[h5py.File], None]) -> None:
    with h5py.File(weights, "r+") as file:
        change(file)


def replaced(name: str, **how: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, **how)

    return change


def link(name: str, target: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = target

    return change


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((40, 11), np.float32)
    layout[:] = h5py.VirtualSource("elsewhere.hdf5", "x", (40, 11))
    del file["CNN_proj/W_proj"]
    file.create_virtual_dataset("CNN_proj/W_proj", layout)


CELL = "RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell"
PROJECTION = np.zeros((40, 11), np.float32)
WRONG: list[tuple[Callable[[h5py.File], None], str]] = [
    (lambda f: f.__delitem__("CNN/b_cnn_1"), r"dataset 'CNN/b_cnn_1' is missing; expected shape \(13,\)"),
    (lambda f: f.__delitem__("RNN_1"), "dataset 'RNN_1/.*' is missing"),
    (replaced("char_embed", data=np.zeros((262, 5), "f4")), r"'char_embed' has shape \(262, 5\), expected \(261, 5\)"),
    (replaced(f"{CELL}/B", data=np.zeros(92)), f"'{CELL}/B' holds float64, expected float32"),
    (replaced(f"{CELL}/B", data=np.zeros(92, "V4")), f"'{CELL}/B' holds .V4, expected float32"),
    (replaced("char_embed", data="text"), r"'char_embed' has shape \(\), expected"),
    (lambda f: (f.__delitem__("char_embed"), f.create_group("char_embed"))[0], "'char_embed' is a group"),
    (link("CNN_proj/W_proj", h5py.SoftLink("/char_embed")), "'CNN_proj/W_proj' is a link to somewhere else"),
    (link("CNN_proj/W_proj", h5py.ExternalLink("other.hdf5", "/x")), "'CNN_proj/W_proj' is a link to somewhere else"),
    (link("CNN_proj", h5py.ExternalLink("other.hdf5", "/x")), "'CNN_proj/W_proj' is a link to somewhere else"),
    (link("CNN_high_2", h5py.ExternalLink("other.hdf5", "/x")), "'CNN_high_2' is a link to somewhere else"),
    (virtual, "'CNN_proj/W_proj' is compressed or stored elsewhere"),
    (replaced("CNN_proj/W_proj", data=PROJECTION, compression="gzip"), "'CNN_proj/W_proj' is compressed"),
    (
        replaced("CNN_proj/W_proj", shape=(40, 11), dtype="f4", external=[("other.bin", 0, 2000)]),
        "'CNN_proj/W_proj' is compressed or stored elsewhere",
    ),
    (replaced("CNN_proj/W_proj", shape=(40, 11), dtype="f4"), "'CNN_proj/W_proj' has no data behind part of its shape"),
    (replaced("CNN_proj/W_proj", shape=(40, 11), dtype="f4", chunks=(8, 11)), "has no data behind part of its shape"),
    (lambda f: f.create_dataset("CNN/W_cnn_3", data=0), "'CNN/W_cnn_3' is there, but options.json .char_cnn.filters"),
    (lambda f: f.create_group("CNN_high_2"), "'CNN_high_2' is there, but options.json .char_cnn.n_highway"),
    (lambda f: f.create_group("RNN_1/RNN/MultiRNNCell/Cell2"), "Cell2' is there, but options.json .lstm.n_layers"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_weights_that_do_not_fit(files: tuple[Path, Path], change: Callable[[h5py.File], None], message: str) -> None:
    options, weights = files
    if "link" in message:
        edit(weights, lambda f: f.pop("CNN_high_2", None))
        edit(weights, lambda f: f.create_group("CNN_high_2") if "CNN_high_2" in message else None)
    edit(weights, change)
    with pytest.raises(UserError, match=f"weights.hdf5: .*{message}") as caught:
        read_hdf5(options, weights)
    assert "\n" not in str(caught.value)


def test_projections_that_the_options_do_not_have(tmp_path: Path) -> None:
    options, weights = tmp_path / "options.json", tmp_path / "weights.hdf5"
    write_hdf5(options, weights, NO_PROJECTIONS, random_tree(NO_PROJECTIONS))
    edit(weights, lambda f: f.create_group("CNN_proj"))
    with pytest.raises(UserError, match="'CNN_proj' is there"):
        read_hdf5(options, weights)
    edit(weights, lambda f: f.__delitem__("CNN_proj"))
    edit(weights, lambda f: f.create_dataset("RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_P_0", data=0))
    with pytest.raises(UserError, match="W_P_0' is there"):
        read_hdf5(options, weights)


def test_plain_chunks_and_the_other_byte_order_are_read(files: tuple[Path, Path]) -> None:
    options, weights = files
    values = random_tree(SMALL)["token_encoder"]["projection"]["kernel"]
    edit(weights, replaced("CNN_proj/W_proj", data=values, chunks=(7, 11)))
    edit(weights, replaced("char_embed", data=random_tree(SMALL)["token_encoder"]["char_embedding"], dtype=">f4"))
    assert_equal(read_hdf5(options, weights)[1], random_tree(SMALL))


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, 0.99])
def test_weights_that_are_cut(files: tuple[Path, Path], kept: float) -> None:
    options, weights = files
    content = weights.read_bytes()
    weights.write_bytes(content[: int(kept * len(content)) if kept < 1 else int(kept)])
    with pytest.raises(UserError, match="weights.hdf5: not a whole HDF5 file") as caught:
        read_hdf5(options, weights)
    assert "\n" not in str(caught.value)


def test_weights_that_are_something_else(files: tuple[Path, Path]) -> None:
    options, weights = files
    shutil.copy(options, weights)
    with pytest.raises(UserError, match="weights.hdf5: not a whole HDF5 file"):
        read_hdf5(options, weights)
    with pytest.raises(UserError, match="nowhere.hdf5: cannot be read .No such file"):
        read_hdf5(options, weights.with_name("nowhere.hdf5"))
    with pytest.raises(UserError, match="cannot be read .Is a directory"):
        read_hdf5(options, weights.parent)


def test_a_sparse_dataset_cannot_ask_for_memory(tmp_path: Path) -> None:
    """A gigabyte declared, of which one chunk is stored."""
    options, weights = tmp_path / "options.json", tmp_path / "weights.hdf5"
    write_options(options, ModelConfig(CharCNNConfig(embedding_dim=1 << 20), LSTMConfig()))
    with h5py.File(weights, "w") as file:
        file.create_dataset("char_embed", (261, 1 << 20), "f4", chunks=(1, 1 << 10), fillvalue=1.0)[0, 0] = 2.0
    with pytest.raises(UserError, match="'char_embed' has no data behind part of its shape"):
        read_hdf5(options, weights)


def test_shared_data_cannot_ask_for_memory(tmp_path: Path) -> None:
    """One block of data under many names: 100 MB declared in a file of 2 MB."""
    options, weights = tmp_path / "options.json", tmp_path / "weights.hdf5"
    model = ModelConfig(CharCNNConfig(filters=((1, 64),), highways=0), LSTMConfig(64, 64, layers=400))
    write_options(options, model)
    blocks: dict[tuple[int, ...], h5py.Dataset] = {}
    with h5py.File(weights, "w") as file:
        for path, shape in parameter_shapes(model).items():
            shape = shape if "filter_0/kernel" not in path else (1, *shape)
            if shape not in blocks:
                blocks[shape] = file.create_dataset(f"block_{len(blocks)}", data=np.zeros(shape, np.float32))
            file[published_name(path)] = blocks[shape]
    assert weights.stat().st_size < 2 << 20
    tracemalloc.start()
    with pytest.raises(UserError, match=r"weights.hdf5: \d+ bytes, too few for the \d+ its datasets say they hold"):
        read_hdf5(options, weights)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_a_tree_of_another_model_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"parameter 'backward/layer_0/bias' has shape \(32,\), expected \(92,\)"):
        write_hdf5(tmp_path / "o", tmp_path / "w", SMALL, random_tree(ONE_LAYER))
    with pytest.raises(UserError, match="cannot be written"):
        write_hdf5(tmp_path / "o", tmp_path / "none" / "w", SMALL, random_tree(SMALL))
    assert list(tmp_path.iterdir()) == []
