"""Tests the shared parts of the scripts of the tables: names of biLMs, finished work, tables and the plot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax import UserError
from experiments.paper.results import Results, digest, draw_layers, layer_name, nearest_types, open_models, table
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
    path = tmp_path / "table.json"
    job = {"bilm": "a", "seed": 0}
    assert Results(path).find(job) is None
    assert Results(path).get(job, lambda: [1.5, "x"]) == [1.5, "x"]
    again = Results(path)
    assert again.get(job, lambda: pytest.fail("done again")) == [1.5, "x"]
    assert again.get(job | {"seed": 1}, lambda: [2]) == [2]
    assert len(json.loads(path.read_text())["entries"]) == 2
    path.write_text("[")
    with pytest.raises(UserError, match="table.json: damaged.*delete it and run the experiment again"):
        Results(path)


def test_results_of_two_processes_are_all_kept(tmp_path: Path) -> None:
    one, two = Results(tmp_path / "table.json"), Results(tmp_path / "table.json")
    assert one.get({"seed": 0}, lambda: 1) == 1
    assert two.get({"seed": 1}, lambda: 2) == 2
    assert [Results(tmp_path / "table.json").find({"seed": seed}) for seed in (0, 1)] == [1, 2]


def test_digests_differ_with_the_data() -> None:
    assert digest([("a", "b")]) == digest([("a", "b")]) != digest([("a b",)])


def test_a_table_is_aligned() -> None:
    assert table([["F1", "paper", "x"], ["first layer", "67.4", ""]]) == "F1           paper  x\nfirst layer   67.4"
    assert [layer_name(layer) for layer in (0, 2, 7)] == ["token layer", "second layer", "layer 7"]


def test_the_plot_keeps_the_panels_of_other_experiments(tmp_path: Path) -> None:
    path = draw_layers(tmp_path, {"senses": {"paper": [(67.4,) * 3, (69.0,) * 3], "a": [(50, 49, 51), (60, 58, 61)]}})
    narrow = path.read_bytes()
    assert narrow.startswith(b"\x89PNG")
    draw_layers(tmp_path, {"tags": {"a": [(90.0, 89.9, 90.1)] * 3}})
    assert json.loads((tmp_path / "layers.json").read_text()).keys() > {"senses", "tags"}
    width = [int.from_bytes(plot[16:20], "big") for plot in (narrow, path.read_bytes())]
    assert width[1] == 2 * width[0]


def test_neighbours_of_vectors_without_context() -> None:
    vectors = {"play": [1.0, 0.0], "game": [2.0, 0.1], "actor": [0.5, 0.5], "tax": [-1.0, 0.0], "zero": [0.0, 0.0]}
    found = nearest_types({word: np.array(v, "f4") for word, v in vectors.items()}, "play", 3)
    assert [word for _, word in found] == ["game", "actor", "zero"]
    assert_allclose([cosine for cosine, _ in found], [2 / np.hypot(2, 0.1), np.sqrt(0.5), 0], atol=1e-6)
    assert nearest_types({"play": np.ones(2, "f4")}, "play", 3) == []
    with pytest.raises(UserError, match="the word 'okapi' has no vector among the 5"):
        nearest_types({word: np.array(v, "f4") for word, v in vectors.items()}, "okapi", 3)
