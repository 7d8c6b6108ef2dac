"""The tagger of `experiments/pos_ewt.py`: the real command on a small treebank with a small biLM."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import orbax.checkpoint as ocp
import pytest

import elmo_jax
from elmo_jax.checkpoints.layout import parameter_shapes, unflatten
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "pos_ewt.py"
CONFIG = ModelConfig(CharCNNConfig(4, ((1, 4), (2, 6)), 1), LSTMConfig(cells=9, projection=6))
# two sentences with all that CoNLL-U has beside words: comments, a word of two, a word that is not in the text
PECULIAR = """\
# newdoc id = made-up
# text = I don't row.
1\tI\tI\tPRON\tPRP\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
2\tdo\tdo\tAUX\tVBP\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
4\trow\trow\tVERB\tVB\t_\t0\troot\t_\tSpaceAfter=No
5\t.\t.\tPUNCT\t.\t_\t4\tpunct\t_\t_

# text = You row, and I fish.
1\tYou\tyou\tPRON\tPRP\t_\t2\tnsubj\t_\t_
2\trow\trow\tVERB\tVBP\t_\t0\troot\t_\t_
3\t,\t,\tPUNCT\t,\t_\t5\tpunct\t_\t_
4\tand\tand\tCCONJ\tCC\t_\t5\tcc\t_\t_
4.1\trow\trow\tVERB\tVBP\t_\t_\t_\t2:conj\t_
5\tI\tI\tPRON\tPRP\t_\t2\tconj\t_\t_
6\tfish\tfish\tNOUN\tNN\t_\t5\torphan\t_\t_
"""
WORDS = {"NOUN": "boat lake oar shore", "VERB": "drifts sinks waits", "ADJ": "old wet green", "DET": "the a this"}


def plain_sentences(number: int, seed: int) -> str:
    """Sentences of a determiner, maybe an adjective, a noun and a verb."""
    random, text = np.random.default_rng(seed), ""
    for _ in range(number):
        tags = ["DET", "ADJ", "NOUN", "VERB"] if random.random() < 0.5 else ["DET", "NOUN", "VERB"]
        for place, tag in enumerate(tags, 1):
            word = random.choice(WORDS[tag].split())
            text += f"{place}\t{word}\t{word}\t{tag}\t_\t_\t0\t_\t_\t_\n"
        text += "\n"
    return text


def biLM(path: Path, seed: int) -> Path:
    """An export with random parameters."""
    random = np.random.default_rng(seed)
    shapes = parameter_shapes(CONFIG)
    elmo_jax.export_bilm(
        path, CONFIG, unflatten({name: random.normal(0, 0.4, shape).astype("f4") for name, shape in shapes.items()})
    )
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `treebank/` and the export `bilm/`."""
    folder = tmp_path_factory.mktemp("pos")
    (folder / "treebank").mkdir()
    for seed, (part, number) in enumerate({"train": 70, "dev": 9, "test": 8}.items()):
        text = PECULIAR + "\n" + plain_sentences(number, seed)
        (folder / "treebank" / f"en_ewt-ud-{part}.conllu").write_text(text)
    biLM(folder / "bilm", 0)
    return folder


def run(folder: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, of two epochs; the processes share compiled programs."""
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": "",
    }
    command = [sys.executable, str(EXPERIMENT), "--bilm", "bilm", "--epochs", "2", *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env=os.environ | settings | environment, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def finished(folder: Path) -> subprocess.CompletedProcess[str]:
    """One seed; its workdir is `run/`."""
    done = run(folder, "--data", "treebank", "--workdir", "run", "--seeds", "1")
    assert done.returncode == 0, done.stderr
    return done


def results(folder: Path, workdir: str = "run") -> dict[str, dict]:
    return {path.parent.name: json.loads(path.read_text()) for path in (folder / workdir).glob("*/result.json")}


def test_the_table_has_all_three_variants(folder: Path, finished: subprocess.CompletedProcess[str]) -> None:
    found = results(folder)
    assert found.keys() == {"without_0", "top_0", "all_0"}
    names = {"without": "without ELMo", "top": "top layer only", "all": "all layers mixed"}
    for variant, name in names.items():
        result = found[f"{variant}_0"]
        assert re.search(rf"^{name} +{result['test']:.2f} ± 0.00 +{result['dev']:.2f} ± 0.00 ", finished.stdout, re.M)
        assert 30 < result["test"] <= 100 and result["epoch"] in (1, 2)
    words = sum(line[:1].isdigit() for line in (PECULIAR + plain_sentences(8, 2)).splitlines()) - 2
    right = found["all_0"]["test"] / 100 * words
    assert right == pytest.approx(round(right), abs=1e-9)  # neither "2-3" nor "4.1" is a word
    assert found["without_0"]["gammas"] == [] and found["top_0"]["weights"] == []
    assert len(found["all_0"]["gammas"]) == 2 and np.shape(found["all_0"]["weights"]) == (2, 3)
    assert np.sum(found["all_0"]["weights"], 1) == pytest.approx([1, 1], abs=1e-6)
    assert len({tuple(weights) for weights in found["all_0"]["weights"]}) == 2, (
        "input and output have mixes of their own"
    )
    assert finished.stdout.count("all layers mixed, output") == 1
    assert (folder / "run" / "pos_ewt.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_run_goes_on(folder: Path, finished: subprocess.CompletedProcess[str]) -> None:
    before = results(folder)
    (folder / "run" / "all_0" / "result.json").unlink()  # what a training leaves that was killed
    marked = before["top_0"] | {"test": 12.5}
    (folder / "run" / "top_0" / "result.json").write_text(json.dumps(marked))
    done = run(folder, "--data", "treebank", "--workdir", "run", "--seeds", "1")
    assert done.returncode == 0, done.stderr
    assert "1/1 all layers mixed, seed 0" in done.stdout and "top layer only, seed" not in done.stdout
    assert results(folder) == before | {"top_0": marked}  # the same seed, the same figures; the rest as it was
    assert re.search(r"^top layer only +12.50", done.stdout, re.M)
    (folder / "run" / "top_0" / "result.json").write_text(json.dumps(before["top_0"]))


def test_another_bilm_is_refused(folder: Path, finished: subprocess.CompletedProcess[str]) -> None:
    biLM(folder / "other", 1)
    done = run(folder, "--data", "treebank", "--workdir", "run", "--bilm", "other")
    assert done.returncode == 2 and "run: holds trainings with another bilm" in complaint(done)
    # and by the checkpoint alone, which holds the fingerprint
    experiment = load_experiment()
    path = folder / "run" / "all_0" / "checkpoints"
    with ocp.CheckpointManager(path) as manager:
        stored = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore())
    assert stored.keys() == {"params", "elmo"}  # not the biLM
    assert stored["params"]["elmo"].keys() == {"mix_0", "mix_1"}
    experiment.restore(path, stored, elmo_jax.load_bilm(folder / "bilm"))
    with pytest.raises(elmo_jax.UserError, match="made with another biLM"):
        experiment.restore(path, stored, elmo_jax.load_bilm(folder / "other"))


def test_words_of_a_file(folder: Path, tmp_path: Path) -> None:
    experiment = load_experiment()
    (tmp_path / "x.conllu").write_bytes(PECULIAR.replace("\n", "\r\n").encode())
    first, second = experiment.read_conllu(tmp_path / "x.conllu")
    assert first.words == ["I", "do", "n't", "row", "."]
    assert [experiment.TAGS[tag] for tag in first.tags] == ["PRON", "AUX", "PART", "VERB", "PUNCT"]
    assert second.words == ["You", "row", ",", "and", "I", "fish"]


TREEBANK = """
import sys, tensorflow_datasets as tfds
sys.path.insert(0, {folder!r})
from pos_ewt import TAGS

class TinyTreebank(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        words = {{name: tfds.features.Sequence(tfds.features.Text()) for name in ("tokens", "head")}}
        tags = tfds.features.Sequence(tfds.features.ClassLabel(names=(*TAGS, "_")))
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({{"upos": tags, **words}}))

    def _split_generators(self, manager):
        return {{part: self._generate_examples(part) for part in ("train", "dev", "test")}}

    def _generate_examples(self, part):
        for number, text in enumerate(open(f"treebank/en_ewt-ud-{{part}}.conllu").read().strip().split("\\n\\n")):
            rows = [line.split("\\t") for line in text.split("\\n") if line[0] != "#"]
            head = ["None" if row[6] == "_" else row[6] for row in rows]  # as TFDS's own builder has it
            yield number, {{"tokens": [row[1] for row in rows], "upos": [row[3] for row in rows], "head": head}}

TinyTreebank(file_format="array_record").download_and_prepare()
"""
COMPARE = """
import sys
sys.path.insert(0, {folder!r})
from pos_ewt import read_treebank
tfds, files = read_treebank("tfds:tiny_treebank"), read_treebank("treebank")
print([sorted(map(repr, tfds[part])) == sorted(map(repr, files[part])) for part in files])
assert "tensorflow" not in sys.modules
"""


def test_tfds_gives_the_same_words(folder: Path, tmp_path: Path) -> None:
    environment = os.environ | {"TFDS_DATA_DIR": str(tmp_path)}  # TFDS reads it once: a process of its own
    for code in (TREEBANK, COMPARE):
        code = code.format(folder=str(EXPERIMENT.parent))
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "[True, True, True]\n"


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a refused command."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("pos_ewt: "), done.stderr
    return lines[0]


def load_experiment() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pos_ewt", EXPERIMENT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["pos_ewt"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_missing_file_is_one_line(folder: Path, tmp_path: Path) -> None:
    done = run(folder, "--data", tmp_path, "--workdir", tmp_path / "run")
    assert f"{tmp_path / 'en_ewt-ud-train.conllu'}: no such file" in complaint(done)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"1\tboat\tNOUN", "expected 10 columns with tabs between, found 3"),
        (b"1\tboat\tboat\tTHING\t_\t_\t0\t_\t_\t_", "expected a word and its UPOS tag, found 'boat' and 'THING'"),
        (b"1\t\tboat\tNOUN\t_\t_\t0\t_\t_\t_", "expected a word and its UPOS tag, found '' and 'NOUN'"),
        (b"2\tboat\tboat\tNOUN\t_\t_\t0\t_\t_\t_", "expected word 1, found '2'"),
        (b"1\tb\xff\tboat\tNOUN\t_\t_\t0\t_\t_\t_", "not UTF-8"),
    ],
)
def test_malformed_line_is_named(tmp_path: Path, line: bytes, expected: str) -> None:
    experiment = load_experiment()
    path = tmp_path / "x.conllu"
    path.write_bytes(PECULIAR.encode() + b"\n" + line + b"\n")
    with pytest.raises(elmo_jax.UserError) as error:
        list(experiment.read_conllu(path))
    number = len(PECULIAR.splitlines()) + 2
    assert str(error.value) == f"{path}, line {number}: {expected}"
