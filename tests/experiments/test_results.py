"""Tests the shared parts of the scripts of the tables: names of biLMs, finished work, tables and the plot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from elmo_jax import UserError
from experiments.paper.results import draw_layers, kept, layer_name, open_models, table
from experiments.paper.table4 import nearest_types
from tests.analysis.texts import CONFIG, write_bilm

PUBLISHED = Path(__file__).parents[1] / "oracles" / "embedding" / "skip"


def test_biLMs_are_called_by_the_last_part_of_their_path(tmp_path: Path) -> None:
    write_bilm(tmp_path / "a" / "english", 0)
    write_bilm(tmp_path / "b" / "export", 1)
    shutil.copytree(tmp_path / "a" / "english", tmp_path / "c" / "english")
    published = f"{PUBLISHED / 'options.json'},{PUBLISHED / 'weights.hdf5'}"
    one, two, three = open_models([str(tmp_path / "a" / "english"), str(tmp_path / "b" / "export"), published])
    assert [one.name, two.name, three.name] == ["english", "b", "weights"]
    assert one.bilm.config == CONFIG and one.bilm.fingerprint != two.bilm.fingerprint
    same = [str(tmp_path / "a" / "english"), str(tmp_path / "c" / "english")]
    assert [model.name for model in open_models(same)] == same
    with pytest.raises(UserError, match="is given 2 times"):
        open_models([same[0], same[0]])
    with pytest.raises(UserError, match="no such file or folder"):
        open_models([str(tmp_path / "nowhere")])


def test_finished_work_is_not_done_again(tmp_path: Path) -> None:
    folder, job = tmp_path / "table", {"bilm": "a", "seed": 0}
    assert kept(folder, job, lambda: [1.5, "x"]) == [1.5, "x"]
    assert kept(folder, job, lambda: pytest.fail("done again")) == [1.5, "x"]
    assert kept(folder, job | {"seed": 1}, lambda: [2]) == [2]
    first, second = sorted(folder.iterdir(), key=lambda path: json.loads(path.read_text())["job"]["seed"])
    assert json.loads(second.read_text())["result"] == [2]
    first.write_text("[")
    with pytest.raises(UserError, match="json: damaged.*delete it and run the experiment again"):
        kept(folder, job, lambda: 1)


def test_a_table_is_aligned() -> None:
    assert table([["F1", "paper", "x"], ["first layer", "67.4", ""]]) == "F1           paper  x\nfirst layer   67.4"
    assert [layer_name(layer) for layer in (0, 2, 7)] == ["token layer", "second layer", "layer 7"]


def test_the_plot_has_a_panel_per_experiment(tmp_path: Path) -> None:
    panels = {
        "senses": {"paper": [(67.4,) * 3, (69.0,) * 3], "a": [(50, 49, 51), (60, 58, 61)]},
        "tags": {"a": [(90.0, 89.9, 90.1)] * 3},
    }
    for number in (1, 2):
        draw_layers(tmp_path / f"{number}.png", dict(list(panels.items())[:number]), [])  # type: ignore[arg-type]
    plots = [(tmp_path / f"{number}.png").read_bytes() for number in (1, 2)]
    width = [int.from_bytes(plot[16:20], "big") for plot in plots]
    assert plots[0].startswith(b"\x89PNG") and width[1] == 2 * width[0]


def test_neighbours_of_vectors_without_context() -> None:
    vectors = {"play": [1.0, 0.0], "game": [2.0, 0.1], "actor": [0.5, 0.5], "tax": [-1.0, 0.0], "zero": [0.0, 0.0]}
    actual = nearest_types({word: np.array(v, "f4") for word, v in vectors.items()}, "play")
    assert actual == ["game", "actor", "zero", "tax"]
