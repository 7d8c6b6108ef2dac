r"""Repeats the paper's tables and figures, and prints its numbers next to ours with a verdict for each of its claims.

    python experiments/paper/grid.py table3 --tasks snli --bilm english --workdir runs/paper --data data
    python experiments/paper/grid.py all --bilm english --workdir runs/paper --data data

The names are those of `TABLES` and of `ANALYSES`, or `all`. The tasks are the experiments `task_TASK.py` in
--experiments: those of experiments/ unless given, or experiments/paper, the paper's own. The paths in them are looked
up in the folders of --data; what is missing there is skipped and listed at the end, and then the exit status is 1.
Rows with equal settings are trained once for all tables, by `gains.py`, which explains rows, resuming and `gains.json`.
`page.py` makes the tables of docs/results.md of such files, and `claims.py` explains differences and verdicts.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from claims import TABLES, TASKS, row_in, trained
from elmo_jax.distributed.cpu import keep_freed_memory
from elmo_jax.errors import UserError
from elmo_jax.files import listed
from elmo_jax.tasks.core.vocabulary import PACKAGED
from gains import Runs, check_overrides
from page import HEAD, draw_shares, draw_weights, lines, rendered, verdicts

FOLDER = Path(__file__).parent
INDEX = "WordNet-3.0/dict/index.sense"
# The options of the scripts of the other tables, with the paths that --data must have.
ANALYSES = {
    "table4": {"--semcor": "semcor3.0", "--glove": "glove.840B.300d.zip"},
    "table5": {"--semcor": "semcor3.0", "--test": "WSD_Evaluation_Framework", "--index": INDEX},
    "table6": {"--ewt": "UD_English-EWT"},
}
DRAWN = {"figure1": draw_shares, "figure2": draw_weights}
NAMES = (*(f"table{number}" for number in range(1, 8)), "taglm", "figure1", "figure2", "lambda", "practice", "cove")


def sources(runs: Runs) -> list[str]:
    """Returns the paths that an experiment reads, without slices in brackets; TFDS finds its datasets itself."""
    config = runs.config()
    paths = [path for part in ("train", "dev", "test") for path in listed(config.data[part])]
    paths += [path for path in listed(config.word_vectors.path) if path != PACKAGED]
    names = (re.sub(r"\[[^\[\]]*\]$", "", path) for path in paths if not path.startswith("tfds:"))
    return list(dict.fromkeys(names))


def folder_with(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    return next((folder for folder in folders if all((folder / name).exists() for name in names)), None)


def repeat(name: str, options: argparse.Namespace) -> int:
    """Trains the rows of a table that are not trained, prints it, and returns the exit status of `elmo-jax`."""
    table = TABLES[name]
    for task in (task for task in table.tasks if task in options.tasks):
        runs = options.runs[task]
        folder = folder_with(options.data, sources(runs))
        if folder is None:
            needs = ", ".join(sources(runs))
            options.skipped.append(f"{name}, {task}: no folder has {needs}; {runs.experiment} says where it is")
            continue
        with contextlib.chdir(folder):
            for row in table.of(task).values():
                status = runs.train(row_in(runs.numbers(), row, runs))
                if status:
                    return status
    measured = {task: trained(table, task, options.runs[task].numbers(), options.runs[task]) for task in table.tasks}
    measured = {task: rows for task, rows in measured.items() if rows}
    if measured:
        print(f"\n{rendered(name, measured)}\n\n{lines([HEAD, *verdicts(name, measured)])}")
        print(f"\nnumbers  {options.workdir / '*' / 'gains.json'}")
        if name in DRAWN:
            DRAWN[name](options.workdir / f"{name}.png", measured)
            print(f"plot     {options.workdir / f'{name}.png'}")
    return 0


def analyze(name: str, options: argparse.Namespace) -> int:
    given = []
    for option, path in ANALYSES[name].items():
        folder = folder_with(options.data, [path])
        if folder is None:
            options.skipped.append(f"{name}: no folder has {path}; {FOLDER / name}.py says where it is")
            return 0
        given += [option, str(folder / path)]
    status: int = importlib.import_module(name).main(["--bilm", options.bilm, "--out", str(options.workdir), *given])
    return status


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=(*NAMES, "all"), help=f"{', '.join(NAMES)}, or all")
    parser.add_argument("--bilm", required=True, metavar="BILM", help="a run, an export, a file or a packaged biLM")
    parser.add_argument("--cove", default="", metavar="DIR", help="the workdir of cove/train.py, for the table cove")
    parser.add_argument("--workdir", type=Path, default=Path("runs/paper"), metavar="DIR", help="(%(default)s)")
    parser.add_argument(
        "--data", type=Path, nargs="+", default=[Path()], metavar="DIR", help="the folders of the data (this one)"
    )
    parser.add_argument(
        "--experiments", type=Path, default=FOLDER.parent, metavar="DIR", help="the folder of the experiments"
    )
    parser.add_argument("--tasks", metavar="T,T", help="only these tasks")
    options, overrides = parser.parse_known_args(arguments)
    check_overrides(parser, overrides)
    if "all" in options.names:
        options.names = [name for name in NAMES if name != "cove" or options.cove]
    tables = [TABLES[name] for name in options.names if name in TABLES]
    options.tasks = options.tasks.split(",") if options.tasks else TASKS
    for task in options.tasks:
        if task not in TASKS:
            parser.error(f"--tasks: {task!r} is none of {', '.join(TASKS)}")
    options.workdir, options.data = options.workdir.absolute(), [folder.absolute() for folder in options.data]
    options.bilm = os.path.abspath(options.bilm) if os.path.exists(options.bilm) else options.bilm
    options.cove = options.cove and os.path.abspath(options.cove)
    options.runs, options.skipped = {}, []
    for task in TASKS:
        experiment, workdir = options.experiments.absolute() / f"task_{task}.py", options.workdir / task
        runs = options.runs[task] = Runs(experiment, options.bilm, workdir, tuple(overrides), options.cove)
        try:
            if task in options.tasks:
                runs.check([row for table in tables if task in table.tasks for row in table.of(task).values()])
        except UserError as error:
            parser.error(str(error))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Repeats the tables and figures, and returns the exit status: 1 if something was skipped, or as `elmo-jax`."""
    keep_freed_memory()  # as in `gains.py`
    options = parse(arguments)
    for name in options.names:
        status = repeat(name, options) if name in TABLES else analyze(name, options)
        if status:
            return status
    for line in options.skipped:
        print(f"skipped: {line}", file=sys.stderr)
    return 1 if options.skipped else 0


if __name__ == "__main__":
    sys.exit(main())
