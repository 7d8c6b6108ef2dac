"""Every command and every snippet of README.md and docs/ runs as it is written there.

Those of README.md run in every suite, those of docs/, which take over a minute, in `make test-slow`; that they are
commands and settings of this version is seen in every suite. What a command would take hours for is made small:
pretraining gets `SMALLER` settings, fine-tuning three steps, and the biLM of `make pretrain` is a small run. So is
`english`, except in the README's snippet, whose output is compared. The targets of make that train or test are looked
up, not run.
"""

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from elmo_jax.cli.main import _options
from elmo_jax.config_file import load_file, with_overrides
from tests.end_to_end.commands import Commands
from tests.environment import xla_flags
from tests.tasks.tagging import write_sentences

ROOT = Path(__file__).parents[2]
ORACLE = ROOT / "tests" / "oracles" / "embedding" / "skip"

SMALLER = """
    --config.model.char_cnn.filters=((1,8),(2,8)) --config.model.lstm.cells=16 --config.model.lstm.projection=8
    --config.train.batch_size=8 --config.train.negatives=16 --config.train.steps=3
""".split()
TUNING = [*SMALLER[-3:], "--processes", "1"]  # JAX looks for other processes only before it is used
COMPILING = [*SMALLER, "--topology", "cpu:1", "--vocab-size", "100"]
MORE = {"pretrain": SMALLER, "finetune": TUNING, "embed": TUNING[3:], "compile": COMPILING}
TREEBANK = "UD_English-EWT"
TAGGER = [
    "--config.seeds=(0,)", "--config.train.epochs=2", "--config.word_vectors.dim=4", "--config.model.layers=(4,)",
    "--config.characters.filters=((2,3),)",
]  # fmt: skip

# One process runs all commands as the console script would, and stops at the first one that fails.
RUN_COMMANDS = """
import json, sys
from elmo_jax.cli.main import main
for line in json.load(sys.stdin):
    if status := main(line):
        sys.exit(f"{line}: ended with {status}")
"""

# One process runs all snippets; those of a page share their names. Its last line has what each block has printed.
RUN_SNIPPETS = """
import contextlib, io, json, sys
names, printed = {}, []
for page, code in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(code, page, "exec"), names.setdefault(page, {"__name__": page}))
    printed.append([page, output.getvalue()])
print(json.dumps(printed))
"""


def pages() -> list[Path]:
    """README.md, and the pages of docs/ in the order of the navigation."""
    actual: list[str] = []
    for entry in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]:
        actual += [entry] if isinstance(entry, str) else next(iter(entry.values()))
    return [ROOT / "README.md", *(ROOT / "docs" / name for name in actual)]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Returns the language and the text of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def command_lines(of: list[Path]) -> list[list[str]]:
    """Every command on pages, as its words, each once; comments are for the reader."""
    text = "".join(text for page in of for language, text in blocks(page) if language == "sh")
    lines = [tuple(shlex.split(line, comments=True)) for line in text.replace("\\\n", " ").splitlines()]
    return [list(words) for words in dict.fromkeys(lines) if words]


@pytest.fixture(scope="module", params=["README", pytest.param("README and docs", marks=pytest.mark.slow)])
def read(request: pytest.FixtureRequest) -> list[Path]:
    """The pages whose commands and snippets run."""
    return pages()[: 1 if request.param == "README" else None]


@pytest.fixture(scope="module")
def folder(read: list[Path], commands: Commands, whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the documentation takes for granted."""
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
    shutil.copy(ORACLE / "options.json", folder)
    shutil.copy(ORACLE / "weights.hdf5", folder)
    of_bilm_tf = ROOT / "tests" / "oracles" / "bilm_tf"
    shutil.copytree(of_bilm_tf, folder / "checkpoint")
    shutil.copy(of_bilm_tf / "words.txt", folder / "vocab-2016-09-10.txt")  # the name of the published one
    return folder


def run(folder: Path, program: str, given: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": xla_flags(1)}
    return subprocess.run(
        [sys.executable, "-c", program], input=given, cwd=folder, env=environment, capture_output=True, text=True
    )


def test_every_block_has_a_language() -> None:
    assert {language for page in pages() for language, _ in blocks(page)} == {"sh", "python", "text"}


def test_targets_of_make_exist() -> None:
    targets = [words[1] for words in command_lines(pages()) if words[0] == "make"]
    assert {"install", "pretrain", "finetune", "bench"} <= set(targets)
    for target in targets:
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def test_snippets_are_python() -> None:
    snippets = [(page.name, code) for page in pages() for language, code in blocks(page) if language == "python"]
    assert len(snippets) > 5
    for name, code in snippets:
        compile(code, name, "exec")


def launches() -> list[list[str]]:
    """The commands that start one of launch/, as they are without sbatch."""
    lines = [words for words in command_lines(pages()) if words[0] == "sbatch" or words[0].startswith("launch/")]
    return [words[[word.startswith("launch/") for word in words].index(True) :] for words in lines]


def test_launches() -> None:
    assert [words[0] for words in launches()] == [
        f"launch/{name}" for name in ("local.sh", "tpu_pod.sh", "slurm.sbatch", "gke.sh", "gke.sh")
    ]
    for script, *arguments in launches():
        command = ["bash", script, "--dry-run", *arguments]
        shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for argument in arguments[arguments.index("--") + 1 :]:
            assert argument in shown, (script, argument)


def our_lines(of: list[Path]) -> list[list[str]]:
    """The arguments of each `elmo-jax` on pages."""
    started = [words[words.index("elmo-jax") :] if words[0] == "srun" else words for words in command_lines(of)]
    return [words[1:] for words in started if words[0] == "elmo-jax"]


def test_commands_and_their_settings_exist() -> None:
    lines = command_lines(pages())
    scripts = [words for words in lines if words[0] == "python"]  # run by the tests of experiments/
    assert all((ROOT / words[1]).is_file() for words in scripts)
    ours = our_lines(pages())
    others = sum(words[0] == "make" for words in lines) + len(launches()) + len(scripts)
    assert len(ours) + others == len(lines), "something else"
    checked = 0
    for options in map(_options, ours):
        config = getattr(options, "config", None)
        if config and config.name != "pretrain_auto.py":  # which reads the corpus first
            with_overrides(load_file(ROOT / config), options.overrides)
            checked += bool(options.overrides)
    assert checked >= 3
    assert any(line[0] == "demo" and _options(line).models for line in ours)


@pytest.fixture(scope="module")
def commands_ran(folder: Path, read: list[Path]) -> Path:
    given = [
        [small(word) for word in line] + (TAGGER if line[:2] == ["task", "train"] else MORE.get(line[0], []))
        for line in our_lines(read)
        if line[0] != "demo"  # until an interrupt; tests/demo starts it
    ]
    ended = run(folder, RUN_COMMANDS, json.dumps(given))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def small(text: str) -> str:
    """A word of a command, or a snippet, with a small run instead of the packaged biLM and few speeches for all."""
    return "my_text.txt" if text == "sotu" else re.sub(r"(?<![\w_])english(?![\w_])", "runs/sotu_tiny", text)


def test_commands(commands_ran: Path, read: list[Path]) -> None:
    of_docs = ("runs/my_domain/result.json", "scores.tsv", "my_bilm/bilm.safetensors", "vectors/job.json")
    for made in ("data/mine/corpus.json", "runs/mine/result.json", *(of_docs if len(read) > 1 else ())):
        assert (commands_ran / made).exists(), made
    if len(read) > 1:
        metrics = json.loads((commands_ran / "metrics.json").read_text())
        assert metrics["perplexity"]["average"] > 1


def test_snippets(commands_ran: Path, read: list[Path]) -> None:
    snippets, expected = [], []
    for page in read:
        actual = blocks(page)
        for (language, code), (next_language, shown) in itertools.pairwise([*actual, ("", "")]):
            if language == "python":
                compared = page.name == "README.md"
                snippets.append((page.name, code if compared else small(code)))
                expected.append(shown if compared and next_language == "text" else None)
    ended = run(commands_ran, RUN_SNIPPETS, json.dumps(snippets))
    assert ended.returncode == 0, ended.stderr
    printed = json.loads(ended.stdout.splitlines()[-1])
    assert [text for text in expected if text is not None], "no output is compared"
    for (page, text), shown in zip(printed, expected, strict=True):
        assert shown in (None, text), page
