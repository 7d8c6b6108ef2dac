"""Tests published weights that are damaged or do not fit their options."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from elmo_jax.checkpoints.hdf5 import published_name, read_hdf5, write_hdf5
from elmo_jax.checkpoints.layout import parameter_shapes
from elmo_jax.checkpoints.options import write_options
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.errors import UserError
from tests.checkpoints.small_models import NO_PROJECTIONS, SMALL, assert_equal, random_tree


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    options, weights = tmp_path / "options.json", tmp_path / "weights.hdf5"
    write_hdf5(options, weights, SMALL, random_tree(SMALL))
    return options, weights


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
    (
        lambda f: f["CNN/b_cnn_1"].__setitem__(3, float("nan")),
        "dataset 'CNN/b_cnn_1' has numbers that are infinite or NaN",
    ),
    (lambda f: f.__delitem__("CNN/b_cnn_1"), r"dataset 'CNN/b_cnn_1' is missing; expected shape \(13,\)"),
    (lambda f: f.__delitem__("RNN_1"), "dataset 'RNN_1/.*' is missing"),
    (replaced("char_embed", data=np.zeros((262, 5), "f4")), r"'char_embed' has shape \(262, 5\), expected \(261, 5\)"),
    (replaced(f"{CELL}/B", data=np.full(92, 1e300)), f"'{CELL}/B' has numbers that are infinite or NaN"),
    (replaced(f"{CELL}/B", data=np.zeros(92, "i4")), f"'{CELL}/B' holds int32, expected float32"),
    (replaced(f"{CELL}/B", data=np.zeros(92, "V4")), f"'{CELL}/B' holds .V4, expected float32"),
    (replaced("char_embed", data="text"), r"'char_embed' has shape \(\), expected"),
    (lambda f: (f.__delitem__("char_embed"), f.create_group("char_embed"))[0], "'char_embed' is a group"),
    (link("CNN_proj/W_proj", h5py.SoftLink("/char_embed")), "'CNN_proj/W_proj' is a link to somewhere else"),
    (link("CNN_proj/W_proj", h5py.ExternalLink("other.hdf5", "/x")), "'CNN_proj/W_proj' is a link to somewhere else"),
    (link("CNN_proj", h5py.ExternalLink("other.hdf5", "/x")), "'CNN_proj/b_proj' is a link to somewhere else"),
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
    """16 MB declared, of which one chunk is stored."""
    options, weights = tmp_path / "options.json", tmp_path / "weights.hdf5"
    write_options(options, ModelConfig(CharCNNConfig(), LSTMConfig(cells=1 << 20)))
    name = "RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell/B"  # the first that is read
    with h5py.File(weights, "w") as file:
        file.create_dataset(name, (1 << 22,), "f4", chunks=(1 << 10,), fillvalue=1.0)[0] = 2.0
    with pytest.raises(UserError, match=f"'{name}' has no data behind part of its shape"):
        read_hdf5(options, weights)


def test_shared_data_cannot_ask_for_memory(tmp_path: Path) -> None:
    """One block of data under many names: 100 MB declared in a file of 2 MB."""
    options, weights = tmp_path / "options.json", tmp_path / "weights.hdf5"
    model = ModelConfig(CharCNNConfig(filters=((1, 64),), highways=0), LSTMConfig(128, 128, layers=100))
    write_options(options, model)
    blocks: dict[tuple[int, ...], h5py.Dataset] = {}
    with h5py.File(weights, "w") as file:
        for path, shape in parameter_shapes(model).items():
            shape = shape if "filter_0/kernel" not in path else (1, *shape)
            if shape not in blocks:
                blocks[shape] = file.create_dataset(f"block_{len(blocks)}", data=np.zeros(shape, np.float32))
            file[published_name(path)] = blocks[shape]
    tracemalloc.start()
    with pytest.raises(UserError, match=r"weights.hdf5: \d+ bytes, too few for the \d+ its datasets say they hold"):
        read_hdf5(options, weights)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
