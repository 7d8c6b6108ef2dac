"""Every command and every snippet of the README runs as it is written there.

What a command would take hours for is made small: pretraining gets `SMALLER` settings, fine-tuning three steps, and the
biLM of `make pretrain` and the models that answer questions, which later lines use, are small runs. The targets of make
that train or test are looked up, not run.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.commands import Commands
from tests.environment import xla_flags
from tests.tasks.problems import PROBLEMS
from tests.tasks.tagging import write_sentences

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ORACLE = ROOT / "tests" / "oracles" / "embedding" / "skip"

SMALLER = """
    --config.model.char_cnn.filters=((1,8),(2,8)) --config.model.lstm.cells=16 --config.model.lstm.projection=8
    --config.train.batch_size=8 --config.train.negatives=16 --config.train.steps=3
""".split()
TUNING = [SMALLER[-1], "--processes", "1"]  # JAX looks for other processes only before it is used
MORE = {"pretrain": SMALLER, "finetune": TUNING, "embed": ["--processes", "1"]}
TREEBANK = "UD_English-EWT"
TAGGER = [
    "--config.seeds=(0,)", "--config.train.epochs=2", "--config.word_vectors.dim=4", "--config.model.layers=(4,)",
    "--config.characters.filters=((2,3),)",
]  # fmt: skip

QUESTIONS = "questions.json"
# trains the models that the README takes from a table
ANSWERING = f"""task train --config experiments/task_squad.py --workdir runs/gains_squad/both --config.seeds=(0,1)
    --config.data.train={QUESTIONS} --config.data.dev={QUESTIONS} --config.data.test= --config.word_vectors.path=
    --config.word_vectors.dim=4
    --config.characters.filters=((2,3),) --config.model.units=4 --config.train.epochs=1""".split()

# One process runs all commands as the console script would, and stops at the first one that fails.
RUN_ALL = """
import json, sys
from elmo_jax.cli.main import main
for line in json.load(sys.stdin):
    if status := main(line):
        sys.exit(f"{line}: ended with {status}")
"""


def blocks(language: str) -> list[str]:
    """Returns the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def command_lines() -> list[list[str]]:
    """Every command, as its words; comments are for the reader."""
    lines = "".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.fixture(scope="module")
def folder(commands: Commands, whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the README takes for granted."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "experiments", folder / "experiments")
    (folder / "corpus").symlink_to(commands.folder / "corpus")
    shutil.copytree(whole, folder / "runs" / "sotu_tiny")
    shutil.copytree(commands.folder / "text", folder / "my_texts")
    shutil.copytree(commands.folder / "text", folder / "my_domain")
    shutil.copy(next((folder / "my_texts").iterdir()), folder / "my_text.txt")
    (folder / "sentences.txt").write_text("My fellow citizens\n\nPeace .\n")
    (folder / "vocab.txt").write_text("My\nfellow\nPeace\n")
    (folder / TREEBANK).mkdir()
    for seed, part in enumerate(("train", "dev", "test")):
        write_sentences(folder / TREEBANK / f"en_ewt-ud-{part}.conllu", 12, seed)
    (folder / QUESTIONS).write_text(PROBLEMS["squad"]().text)
    shutil.copy(ORACLE / "options.json", folder)
    shutil.copy(ORACLE / "weights.hdf5", folder)
    return folder


def run(folder: Path, program: str, given: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": xla_flags(1)}
    return subprocess.run(
        [sys.executable, "-c", program], input=given, cwd=folder, env=environment, capture_output=True, text=True
    )


def test_every_block_says_what_it_is():
    fences = re.findall(r"^```(\w*)$", README, re.MULTILINE)
    assert set(fences[::2]) == {"sh", "python", "text"} and set(fences[1::2]) == {""}


def test_targets_of_make_exist():
    targets = [words[1] for words in command_lines() if words[0] == "make"]
    assert "pretrain" in targets and "test" in targets
    for target in targets:
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def launches() -> list[list[str]]:
    """The commands that start one of launch/, as they are without sbatch."""
    lines = [words for words in command_lines() if words[0] == "sbatch" or words[0].startswith("launch/")]
    return [words[[word.startswith("launch/") for word in words].index(True) :] for words in lines]


def test_launches():
    assert [words[0] for words in launches()] == [
        f"launch/{name}" for name in ("local.sh", "tpu_pod.sh", "slurm.sbatch", "gke.sh")
    ]
    for script, *arguments in launches():
        command = ["bash", script, "--dry-run", *arguments]
        shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for argument in arguments[arguments.index("--") + 1 :]:
            assert argument in shown, (script, argument)


@pytest.fixture(scope="module")
def commands_ran(folder: Path) -> Path:
    lines = [words[1:] for words in command_lines() if words[0] == "elmo-jax"]
    others = sum(words[0] == "make" for words in command_lines()) + len(launches())
    others += sum(words[0] == "python" for words in command_lines())  # run by tests of these files
    assert len(lines) + others == len(command_lines()), "something else"
    trained = next(line for line in lines if line[:2] == ["task", "predict"] and "--ensemble" in line)
    assert trained[2] == ANSWERING[ANSWERING.index("--workdir") + 1]
    lines = [ANSWERING] + [
        line + MORE.get(line[0], []) if line[:2] != ["task", "train"] else [*line, *TAGGER] for line in lines
    ]
    for line in lines:  # all speeches would take half a minute
        if line[0] == "neighbours":
            line[2] = "my_text.txt"
    ended = run(folder, RUN_ALL, json.dumps(lines))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def test_commands(commands_ran: Path):
    runs = ("runs/mine/result.json", "runs/my_domain/result.json")
    for made in ("data/mine/corpus.json", *runs, "scores.tsv", "my_bilm/bilm.json"):
        assert (commands_ran / made).exists(), made
    figures = json.loads((commands_ran / "figures.json").read_text())
    assert figures["perplexity"]["average"] > 1


def test_snippets(commands_ran: Path):
    ended = run(
        commands_ran, "\n".join([*blocks("python"), "print(logits.shape, mask.shape, spelt.shape, words.shape)"])
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("EmbeddingBiLM ")
    assert ended.stdout.splitlines()[-2:] == ["(2, 3, 3, 32) [3 2]", "(2, 3, 17) (2, 3) (16, 50) (1, 8)"]
