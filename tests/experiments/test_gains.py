"""Tests `experiments/paper/gains.py` from its command line to its table, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

import elmo_jax
from elmo_jax.tasks.core.run import shown, statistics
from tests.tasks.tagging import overrides, write_problem

FILE = Path(__file__).parents[2] / "experiments" / "paper" / "gains.py"
TASK = FILE.parents[1] / "task_pos.py"
RESULTS = FILE.parents[2] / "docs" / "results.md"
README = FILE.parents[2] / "README.md"


@pytest.fixture(scope="module")
def gains() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gains", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_each_row_is_a_run_with_its_own_setting(gains, tmp_path, capsys):
    write_problem(tmp_path)
    given = overrides(
        tmp_path, "seeds=(0,1)", "train.epochs=2", "characters.filters=((2,3),)", "word_vectors.min_count=1"
    )
    workdir = tmp_path / "gains"
    command = ["--config", str(TASK), "--bilm", str(tmp_path / "bilm"), "--workdir", str(workdir), *given]
    assert gains.main([*command, "--rows", "none,top+tenth"]) == 0
    printed = capsys.readouterr().out
    written = json.loads((workdir / "gains.json").read_text())
    configs = {row: json.loads((workdir / row / "config.json").read_text())["config"] for row in ("none", "top+tenth")}
    assert [configs[row]["bilm"] != "" for row in configs] == [False, True]
    assert configs["top+tenth"]["elmo"]["layers"] == "top" and configs["top+tenth"]["elmo"]["where"] == "both"
    at_input = gains.Runs(TASK, "english", workdir).config("input").elmo
    assert at_input.layers == "all" and at_input.where == "input"
    share = configs["top+tenth"]["train"]
    # 6 epochs of one step have as many evaluations as the 2 epochs of all examples.
    assert share["epochs"] == 6 and share["patience"] == 0 and share["evaluate_every"] == 3
    for row in ("none", "top+tenth"):
        result = json.loads((workdir / row / "result.json").read_text())
        line = next(line for line in printed.splitlines()[::-1] if line.startswith(row))
        assert f"{result['test']['mean']:.2f} ± {result['test']['sd']:.2f} (n = 2)" in line
        numbers = written[row]
        assert (numbers["bilm"] is None) == (row == "none") and numbers["test"] == result["test"]
        assert [seed["test"]["accuracy"] for seed in numbers["seeds"]] == [
            seed["test"]["accuracy"] for seed in result["seeds"]
        ]
    trainings = sorted(workdir.glob("*/seed_*/metrics.jsonl"))
    assert len(trainings) == 4
    before = [path.read_bytes() for path in trainings]
    assert gains.main([*command, "--rows", "none,top+tenth"]) == 0
    assert before == [path.read_bytes() for path in trainings]  # nothing was trained again


@pytest.mark.parametrize("path", sorted(FILE.parent.glob("gains_*.json")), ids=lambda path: path.stem)
def test_the_numbers_are_of_the_packaged_biLM_and_of_every_seed(gains, path):
    (named,) = set(re.findall(r"fingerprint\s+`([0-9a-f]{12})`", RESULTS.read_text()))
    assert elmo_jax.load_bilm("english").fingerprint.startswith(named)
    for name, row in json.loads(path.read_text()).items():
        assert gains.is_row(name) and isinstance(row["settings"], list)
        if name.startswith("none"):
            assert row["bilm"] is None
        else:  # the rows of CoVe and of a fine-tuned biLM have fingerprints of their own
            assert row["bilm"].startswith(named) != name.startswith(("cove", "tuned"))
        for part in ("test", "dev"):
            assert row[part] == statistics([seed[part][row["metric"]] for seed in row["seeds"]])
        for seed in row["seeds"]:
            assert [seed["step"], seed["dev"][row["metric"]]] in seed["curve"]  # the best epoch


def test_the_readme_has_these_numbers():
    tasks = ["pos", "ner", "sst", "snli", "srl", "coref", "squad"]
    rows = re.findall(r"^\| .*? \| (?:accuracy|(?:mean )?F1) \| (.*) \| (.*) \|$", README.read_text(), re.MULTILINE)
    for task, scores in zip(tasks, rows, strict=True):
        numbers = json.loads((FILE.parent / f"gains_{task}.json").read_text())
        assert scores == tuple(shown(numbers[row]["test"]).split(" (")[0] for row in ("none", "all"))


def test_settings_without_elmo_are_those_of_the_docstrings(gains):
    """A setting that the small experiment's own config has already is not in its docstring."""
    for task, settings in gains.WITHOUT_ELMO.items():
        name = f"task_{task}.py"
        given = [f"--config.{setting}" for setting in settings]
        paper = (TASK.parent / "paper" / name).read_text().split('"""')[1]
        assert re.findall(r"`((?:--config\.model\.\S+=[\d.]+ ?)+)`", paper) == [" ".join(given)]
        text = (TASK.parent / name).read_text()
        other = [one for one in given if one.removeprefix("--").replace("=", " = ") not in text]
        assert f"`--config.bilm= {' '.join(other)}` trains" in text.split('"""')[1]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--rows", "none,some"], "--rows: 'some' is none of none, top"),
        (["--rows", "none,top,none"], "--rows: none is given twice"),
        (["--rows", "tuned"], "--tuned: the row tuned needs the run of supplement.py"),
        (["--seeds", "3"], "unknown option '--seeds'"),
        (["--config.elmo.layers=1"], "--config.elmo.layers: the row top sets it; leave out the row or the setting"),
        (
            ["--rows", "input", "--config.elmo.layers=1"],
            "--config.elmo.layers: the row input sets it; leave out the row",
        ),
        (
            ["--config.bilm=english"],
            "--config.bilm: the script sets it; give the biLM of the rows with ELMo with --bilm",
        ),
        (["--config.elmo.cache=layers"], "--config.elmo.cache: the script sets it; leave it out"),
        (
            ["--config", str(TASK.with_name("task_sst.py")), "--config.model.input_dropout=0.1"],
            "--config.model.input_dropout: the row none sets it; leave out the row or the setting",
        ),
    ],
)
def test_mistakes_are_named(gains, tmp_path, capsys, extra, message):
    with pytest.raises(SystemExit, match="2"):
        gains.main(["--config", str(TASK), "--bilm", "english", "--workdir", str(tmp_path / "no"), *extra])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
