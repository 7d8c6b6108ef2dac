"""The scripts of Tables 4, 5 and 6 end to end: the real commands, their `--quick` form, on small texts."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.analysis.texts import CONFIG, INDEX, write_bilm, write_framework, write_semcor
from tests.analysis.treebank import PECULIAR, ROOT, plain_sentences, run_experiment

SETS = ("senseval2", "senseval3", "semeval2007", "semeval2013", "semeval2015")
SEMCOR = ("--semcor", "semcor3.0", "--out", "out", "--quick")
TABLE_5 = ("--test", "wsd", "--index", "index.sense", *SEMCOR)
TABLE_6 = ("--ewt", "ewt", "--ptb", "wsj", "--more", "--out", "out", "--quick")
GLOVE = "play 1 0\nbank 1 0.1\nfish 0.5 0.5\ngreen -1 0\nokapi 1 0\n"
PENN = "[ The/DT bank/NN ]\nsinks/VBZ ./.\n\n\n[ A/DT boat/NN ]\nfishes/VBZ\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes two biLMs, of which `other` has the forward direction alone, and small forms of all texts."""
    folder = tmp_path_factory.mktemp("tables")
    write_bilm(folder / "one")
    write_bilm(folder / "other", 1, dataclasses.replace(CONFIG, directions=("forward",)))
    (folder / "index.sense").write_text(INDEX)
    write_semcor(folder / "semcor3.0")
    for name in SETS:
        write_framework(folder / "wsd" / name, name)
    (folder / "ewt").mkdir()
    for seed, (part, number) in enumerate({"train": 70, "dev": 9, "test": 8}.items()):
        (folder / "ewt" / f"en_ewt-ud-{part}.conllu").write_text(
            PECULIAR + "\n" + plain_sentences(number, seed).replace("\t_\t_\t0", "\tTAG\t_\t0")
        )
    for section in range(25):
        (folder / "wsj" / f"{section:02}").mkdir(parents=True)
        (folder / "wsj" / f"{section:02}" / f"wsj_{section:02}01.pos").write_text(PENN)
    (folder / "glove.txt").write_text(GLOVE)
    return folder


@pytest.fixture
def script(folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    """The script that the test's parameter names, in this process."""
    monkeypatch.chdir(folder)
    path = ROOT / "experiments" / "paper" / f"{request.param}.py"
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, path.stem, module)
    specification.loader.exec_module(module)
    return module


def run(folder: Path, name: str, *arguments: str) -> str:
    """Runs the real command and returns what it prints."""
    return run_experiment(folder, ROOT / "experiments" / "paper" / name, *arguments)


def results_in(folder: Path) -> list[dict[str, Any]]:
    """The kept jobs with their results, in the order in which they were finished."""
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(path.read_text()) for path in files]


def test_table_4(folder: Path) -> None:
    printed = run(folder, "table4.py", "--bilm", "one", "--glove", "glove.txt", *SEMCOR)
    assert "GloVe, glove.txt: bank, fish, green\n" in printed  # among the words of the text
    assert "biLM one, second layer\n" in printed
    blocks = printed.split("\n\n")[-2:]
    for block, beginning in zip(blocks, ("Chico Ruiz made a spectacular [play]", "Olivia De Havilland"), strict=True):
        asked, paper, *neighbours = block.strip().splitlines()
        assert beginning in asked and paper.startswith("  paper: ") and len(neighbours) == 10
        cosines = [float(line.split()[0]) for line in neighbours]
        assert cosines == sorted(cosines, reverse=True)
    assert re.search(r"bank%1:17:01:: +\[bank\] green such$", printed, re.MULTILINE)


def test_table_5(folder: Path) -> None:
    printed = run(folder, "table5.py", "--bilm", "one", "other", *TABLE_5)
    assert "SemCor: 6 instances, 14 words in 3 sentences; 2 of 8 sense keys (25.0%) are not in the index" in printed
    assert "4 x 3" not in printed and "pooled, 12 instances" in printed
    first = re.search(r"^WordNet first sense +65\.9 +66\.67 \[\d+\.\d\d, \d+\.\d\d\] +66\.67", printed, re.MULTILINE)
    assert first is not None
    entries = results_in(folder / "out" / "table5")
    assert len(entries) == 2
    for entry in entries:
        result = entry["result"]
        assert result["scores"].keys() == {"pooled", *SETS} and result["unseen"] == 4  # fruit_fly in four sets
        pooled = [value for value, _, _, _ in result["scores"]["pooled"]]
        # one of the three has a key that no sense of WordNet has, and is wrong
        assert all(value in (pytest.approx(100 / 3), pytest.approx(200 / 3)) for value in pooled)
        gains = [value for value, _, _, _ in result["gains"]]
        assert gains == pytest.approx([pooled[1] - pooled[0], pooled[2] - pooled[1]])
        assert all(low <= value <= high for value, low, high, _ in result["scores"]["pooled"] + result["gains"])
        assert re.search(rf"^biLM, second layer +69\.0 .*{pooled[2]:.2f} \[", printed, re.MULTILINE)
    assert re.search(r"^second layer - first layer +\+1\.6 +[+-]\d+\.\d\d \[", printed, re.MULTILINE)
    assert (folder / "out" / "table5.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((folder / "out" / "table5.json").read_text())
    assert f"{written.pop('WordNet first sense')['pooled'][0]:.2f} [" in printed
    assert written.keys() == {"one", "other"} and list(written.values()) == [entry["result"] for entry in entries]


def test_table_6(folder: Path) -> None:
    printed = run(folder, "table6.py", "--bilm", "other", *TABLE_6)
    for tags in ("EWT XPOS", "EWT UPOS", "PTB"):
        assert f"Table 6, part-of-speech tags of {tags}; mean" in printed
    views = ["biLM, token layer", "biLM, first layer", "biLM, second layer"]
    views += ["all layers, mixed", "all layers, side by side", "second layer without its input"]
    entries = results_in(folder / "out" / "table6")
    assert len(entries) == 3 * len(views) * 2  # seeds
    assert list(dict.fromkeys(entry["job"]["view"] for entry in entries)) == views
    accuracies = [entry["result"]["test"] for entry in entries[:2]]
    mean = f"{sum(accuracies) / 2:.2f}"
    assert re.search(rf"^biLM, token layer +{mean} ± \d\.\d\d \(n = 2\)", printed, re.MULTILINE)
    assert re.search(r"^biLM, first layer +97\.3 +\d+\.\d\d ± ", printed, re.MULTILINE)
    assert re.search(r"^first layer - second layer +\+0\.5 +[+-]\d+\.\d\d ± ", printed, re.MULTILINE)
    assert (folder / "out" / "table6.png").read_bytes().startswith(b"\x89PNG")
    written = [treebank["other"] for treebank in json.loads((folder / "out" / "table6.json").read_text())]
    assert [list(columns) for columns in written] == [["EWT XPOS", "EWT UPOS"], ["PTB"]]
    assert written[0]["EWT XPOS"]["biLM, token layer"] == [entry["result"] for entry in entries[:2]]


@pytest.mark.parametrize(
    ("script", "arguments", "test"),
    [
        ("table5", ("--bilm", "one", *TABLE_5), "test_table_5"),
        ("table6", ("--bilm", "other", *TABLE_6), "test_table_6"),
    ],
    indirect=["script"],
    ids=["table5", "table6"],
)
def test_what_is_finished_needs_no_vectors(
    folder: Path, script: ModuleType, arguments: tuple[str, ...], test: str, capsys: pytest.CaptureFixture[str]
) -> None:
    results = folder / "out" / script.__name__
    if not results.is_dir():
        globals()[test](folder)
    before = results_in(results)
    shutil.rmtree(folder / "out" / "vectors", ignore_errors=True)
    assert script.main(arguments) == 0
    assert "embedded" not in capsys.readouterr().out and not (folder / "out" / "vectors").exists()
    assert results_in(results) == before


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("table4", ("--bilm", "nowhere", *SEMCOR), "nowhere: no such file or folder"),
        ("table5", ("--bilm", "one", *TABLE_5, "--test", "ewt"), "senseval2/senseval2.data.xml"),
        ("table5", ("--bilm", "one", *TABLE_5, "--semcor", "ewt"), "ewt: expected the folders brown1, brown2"),
        (
            "table6",
            ("--bilm", "one", "--ewt", "wsj", "--out", "out"),
            "wsj: expected one file *train.conllu, found 0",
        ),
        ("table6", ("--bilm", "one", "--ptb", "ewt", "--out", "out"), "expected .pos files of section 0 (train)"),
    ],
    indirect=["script"],
)
def test_a_mistake_is_one_line(
    script: ModuleType, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{script.__name__}: ") and message in line


def test_the_commands_of_the_docstrings_are_whole() -> None:
    for name in ("table4", "table5", "table6"):
        text = (ROOT / "experiments" / "paper" / f"{name}.py").read_text()
        assert f"python experiments/paper/{name}.py --bilm" in text
