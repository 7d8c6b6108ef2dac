"""Tests the tagger of `experiments/pos_ewt.py` by the real command on a small treebank with a small biLM."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import orbax.checkpoint as ocp
import pytest

import elmo_jax
from tests.experiments.treebank import PECULIAR, make_bilm, plain_sentences, run_experiment, write_folder

ROOT = Path(__file__).parents[2]
EXPERIMENT = ROOT / "experiments" / "pos_ewt.py"
README_COMMAND = ["python", "experiments/pos_ewt.py", "--bilm", "runs/fiction", "--data", "UD_English-EWT"]
Capture: TypeAlias = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def experiment() -> ModuleType:
    """Imports the experiment, for the tests that need no process."""
    sys.path.insert(0, str(EXPERIMENT.parent))
    spec = importlib.util.spec_from_file_location("pos_ewt", EXPERIMENT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["pos_ewt"] = module  # dataclasses look for the module here
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the treebank and the biLM that the README's command names."""
    return write_folder(tmp_path_factory.mktemp("pos"))


def run(folder: Path) -> str:
    """Returns what the README's command prints with two epochs and one seed."""
    return run_experiment(folder, *README_COMMAND[1:], "--epochs", "2", "--seeds", "1")


@pytest.fixture(scope="module")
def printed(folder: Path) -> str:
    """Returns the output of the first run, whose workdir is `runs/pos_ewt`."""
    return run(folder)


def test_the_readme_has_this_command() -> None:
    assert f"\n{' '.join(README_COMMAND)}\n" in (ROOT / "README.md").read_text()


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the result of each training by name."""
    found = (folder / "runs" / "pos_ewt").glob("*/result.json")
    return {path.parent.name: json.loads(path.read_text()) for path in found}


def test_the_table_has_all_three_variants(folder: Path, printed: str) -> None:
    found = results(folder)
    assert found.keys() == {"without_0", "top_0", "all_0"}
    names = {"without": "without ELMo", "top": "top layer only", "all": "all layers mixed"}
    words = sum(line[:1].isdigit() for line in (PECULIAR + plain_sentences(8, 2)).splitlines())
    for variant, name in names.items():
        result = found[f"{variant}_0"]
        assert re.search(rf"^{name} +{result['test']:.2f} ± 0.00 +{result['dev']:.2f} ± 0.00 ", printed, re.MULTILINE)
        assert 30 < result["test"] <= 100 and result["epoch"] in (1, 2)
        right = result["test"] / 100 * (words - 2)  # neither "2-3" nor "4.1" is a word
        assert right == pytest.approx(round(right), abs=1e-9)
    assert found["without_0"]["gammas"] == [] and found["top_0"]["weights"] == []
    assert np.shape(found["all_0"]["gammas"]) == (2,) and np.shape(found["all_0"]["weights"]) == (2, 3)
    assert np.sum(found["all_0"]["weights"], 1) == pytest.approx([1, 1], abs=1e-6)
    for place, weights in zip(("input", "output"), found["all_0"]["weights"], strict=True):
        shares = " ".join(f"{weight:.2f}" for weight in weights)
        assert re.search(rf"^all layers mixed, {place} +gamma \d\.\d\d  weights {shares}$", printed, re.MULTILINE)
    assert found["all_0"]["weights"][0] != found["all_0"]["weights"][1], "input and output have mixes of their own"
    assert (folder / "runs" / "pos_ewt" / "pos_ewt.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_run_goes_on(folder: Path, printed: str) -> None:
    before, run_folder = results(folder), folder / "runs" / "pos_ewt"
    (run_folder / "all_0" / "result.json").unlink()  # as if the training was killed
    marked = before["top_0"] | {"test": 12.5}
    (run_folder / "top_0" / "result.json").write_text(json.dumps(marked))
    again = run(folder)
    assert "1/1 all layers mixed, seed 0" in again and "top layer only, seed" not in again
    assert results(folder) == before | {
        "top_0": marked
    }  # the same seed gives the same metrics, and the other results are unchanged
    assert re.search(r"^top layer only +12.50", again, re.MULTILINE)


def test_elmo_alone_has_no_words_of_its_own(folder: Path) -> None:
    command = (*README_COMMAND[1:], "--elmo-alone", "--epochs", "1", "--seeds", "1", "--workdir", "runs/alone")
    printed = run_experiment(folder, *command)
    assert "top layer only" in printed and "without ELMo" not in printed
    with ocp.CheckpointManager(folder / "runs" / "alone" / "all_0" / "checkpoints") as manager:
        stored = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore())
    assert stored["params"].keys() & {"words", "characters", "char_cnn"} == set()
    inputs = {layer["ii"]["kernel"].shape[0] for name, layer in stored["params"].items() if "LSTM" in name}
    assert inputs == {12}  # 2P of the biLM


def test_another_bilm_is_refused(folder: Path, printed: str, experiment: ModuleType, capsys: Capture) -> None:
    make_bilm(folder / "other", 1)
    arguments = ["--data", folder / "UD_English-EWT", "--workdir", folder / "runs" / "pos_ewt", "--epochs", "2"]
    line = complaint(experiment, capsys, "--bilm", folder / "other", *arguments)
    assert "runs/pos_ewt: holds trainings with another bilm" in line
    # and by the checkpoint alone
    path = folder / "runs" / "pos_ewt" / "all_0" / "checkpoints"
    with ocp.CheckpointManager(path) as manager:
        stored = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore())
    assert stored.keys() == {"params", "elmo"} and stored["params"]["elmo"].keys() == {"mix_0", "mix_1"}  # no biLM
    restored = experiment.restore(path, stored, elmo_jax.load_bilm(folder / "runs" / "fiction"))
    assert restored["elmo"]["elmo"]["fingerprint"].shape == (32,)
    with pytest.raises(elmo_jax.UserError, match="made with another biLM"):
        experiment.restore(path, stored, elmo_jax.load_bilm(folder / "other"))


def test_words_of_a_file(experiment: ModuleType, tmp_path: Path) -> None:
    from ewt.treebank import TAGS, read_conllu

    (tmp_path / "x.conllu").write_bytes(PECULIAR.replace("\n", "\r\n").encode())
    first, second = read_conllu(tmp_path / "x.conllu")
    assert first.words == ["I", "do", "n't", "row", "."]
    assert [TAGS[tag] for tag in first.tags] == ["PRON", "AUX", "PART", "VERB", "PUNCT"]
    assert second.words == ["You", "row", ",", "and", "I", "fish"]


TREEBANK = """
import sys, tensorflow_datasets as tfds
sys.path.insert(0, {folder!r})
from ewt.treebank import TAGS

class TinyTreebank(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        words = {{name: tfds.features.Sequence(tfds.features.Text()) for name in ("tokens", "head")}}
        tags = tfds.features.Sequence(tfds.features.ClassLabel(names=(*TAGS, "_")))
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({{"upos": tags, **words}}))

    def _split_generators(self, manager):
        return {{part: self._generate_examples(part) for part in ("train", "dev", "test")}}

    def _generate_examples(self, part):
        for number, text in enumerate(open(f"UD_English-EWT/en_ewt-ud-{{part}}.conllu").read().strip().split("\\n\\n")):
            rows = [line.split("\\t") for line in text.split("\\n") if line[0] != "#"]
            head = ["None" if row[6] == "_" else row[6] for row in rows]  # as TFDS's own builder has it
            yield number, {{"tokens": [row[1] for row in rows], "upos": [row[3] for row in rows], "head": head}}

TinyTreebank(file_format="array_record").download_and_prepare()
"""
COMPARE = """
import sys
sys.path.insert(0, {folder!r})
from ewt.treebank import read_treebank
tfds, files = read_treebank("tfds:tiny_treebank"), read_treebank("UD_English-EWT")
print([sorted(map(repr, tfds[part])) == sorted(map(repr, files[part])) for part in files])
assert "tensorflow" not in sys.modules
"""


def test_tfds_gives_the_same_words(folder: Path, tmp_path: Path) -> None:
    environment = os.environ | {
        "TFDS_DATA_DIR": str(tmp_path)
    }  # TFDS reads it only once, so this is a separate process
    for code in (TREEBANK, COMPARE):
        code = code.format(folder=str(EXPERIMENT.parent))
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "[True, True, True]\n"


def complaint(experiment: ModuleType, capsys: Capture, *arguments: str | Path) -> str:
    """Returns the single line of a refused command."""
    capsys.readouterr()
    assert experiment.main([str(argument) for argument in arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("pos_ewt: "), lines
    return lines[0]


def test_missing_file_is_one_line(folder: Path, experiment: ModuleType, tmp_path: Path, capsys: Capture) -> None:
    arguments = ("--bilm", folder / "runs" / "fiction", "--data", tmp_path, "--workdir", tmp_path / "run")
    line = complaint(experiment, capsys, *arguments)
    assert f"{tmp_path / 'en_ewt-ud-train.conllu'}: no such file" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"1\tboat\tNOUN", "expected 10 columns separated by tabs, found 3"),
        (b"1\tboat\tboat\tTHING\t_\t_\t0\t_\t_\t_", "expected a word and its UPOS tag, found 'boat' and 'THING'"),
        (b"1\t\tboat\tNOUN\t_\t_\t0\t_\t_\t_", "expected a word and its UPOS tag, found '' and 'NOUN'"),
        (b"2\tboat\tboat\tNOUN\t_\t_\t0\t_\t_\t_", "expected word 1, found '2'"),
        (b"1\tb\xff\tboat\tNOUN\t_\t_\t0\t_\t_\t_", "not UTF-8"),
    ],
    ids=["columns", "tag", "no word", "number", "encoding"],
)
def test_malformed_line_is_named(experiment: ModuleType, tmp_path: Path, line: bytes, expected: str) -> None:
    from ewt.treebank import read_conllu

    path = tmp_path / "x.conllu"
    path.write_bytes(PECULIAR.encode() + b"\n" + line + b"\n")
    with pytest.raises(elmo_jax.UserError) as error:
        list(read_conllu(path))
    number = len(PECULIAR.splitlines()) + 2
    assert str(error.value) == f"{path}, line {number}: {expected}"
