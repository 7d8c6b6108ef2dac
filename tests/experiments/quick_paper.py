"""Repeats all of the paper's tables and figures on tiny data: `python -m tests.experiments.quick_paper FOLDER`."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from elmo_jax.environment import keep_compiled_programs
from tests.analysis.texts import INDEX, write_framework, write_semcor
from tests.analysis.treebank import plain_sentences
from tests.environment import xla_flags
from tests.tasks.problems import PROBLEMS, settings_of
from tests.tasks.tagging import write_problem

SETS = ("senseval2", "senseval3", "semeval2007", "semeval2013", "semeval2015")
EXPERIMENT = '''"""{name} on twenty examples.

The examples are those of tests/tasks/problems.py.
"""

from elmo_jax.config_file import with_overrides
from elmo_jax.tasks.registry import default_config


def get_config():
    """Returns the config."""
    return with_overrides(default_config("{name}"), {settings})
'''


def write_experiments(folder: Path, seeds: int = 2) -> None:
    """Writes the files of all tasks, experiments on them, and a biLM."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "experiments").mkdir(exist_ok=True)
    write_problem(folder)
    for name, make in PROBLEMS.items():
        problem = make()
        path = Path(f"{name}_{problem.file}")
        (folder / "data" / path).write_text(problem.text)
        more = (f"data.test={path}", f"seeds={tuple(range(seeds))}", "train.epochs=2")
        settings = settings_of(problem, path, *more)
        text = EXPERIMENT.format(name=name, settings=settings)
        (folder / "experiments" / f"task_{name}.py").write_text(text)


def write_texts(folder: Path) -> None:
    """Writes the texts of Tables 4, 5 and 6."""
    data = folder / "data"
    if not (data / "semcor3.0").exists():
        write_semcor(data / "semcor3.0")
    for name in SETS:
        write_framework(data / "WSD_Evaluation_Framework" / name, name)
    (data / "WordNet-3.0" / "dict").mkdir(parents=True, exist_ok=True)
    (data / "WordNet-3.0" / "dict" / "index.sense").write_text(INDEX)
    with zipfile.ZipFile(data / "glove.840B.300d.zip", "w") as file:
        file.writestr("glove.840B.300d.txt", "play 1 0\nbank 1 0.1\nfish 0.5 0.5\ngreen -1 0\n")
    (data / "UD_English-EWT").mkdir(exist_ok=True)
    for seed, (part, number) in enumerate({"train": 70, "dev": 9, "test": 8}.items()):
        sentences = plain_sentences(number, seed).replace("\t_\t_\t0", "\tTAG\t_\t0")
        (data / "UD_English-EWT" / f"en_ewt-ud-{part}.conllu").write_text(sentences)


def command(folder: Path, *names: str) -> list[str]:
    """Returns the arguments of `grid.py` for these tables."""
    options = {"--bilm": "bilm", "--workdir": "runs", "--data": "data", "--experiments": "experiments"}
    return [*names, *(word for option, name in options.items() for word in (option, str(folder / name)))]


def main(arguments: Sequence[str]) -> int:
    """Writes the data into a folder, makes all tables and figures, and returns the exit status."""
    from grid import main as grid

    folder = Path(os.path.abspath(arguments[0]))
    write_experiments(folder)
    write_texts(folder)
    return grid(command(folder, "all"))


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = xla_flags(1)
    keep_compiled_programs(Path(__file__).parents[2] / ".cache")
    sys.exit(main(sys.argv[1:]))
