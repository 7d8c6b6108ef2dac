r"""Measures what ELMo gains on a task, as Tables 1, 2 and 3 of the paper do: one training per row and seed.

    python experiments/paper/gains.py --config experiments/task_ner.py --bilm english --workdir runs/ner_gains
    python experiments/paper/gains.py --config experiments/task_snli.py --bilm english --workdir runs/snli_gains \
        --rows none,input,output,both

The rows are: `none`, without ELMo; `top`, the top layer alone; `all`, all layers mixed; all layers mixed at the
`input`, at the `output`, or at `both`; and `trained`, all layers mixed and the biLM's LSTMs trained together with the
task. Everything else is as in the experiment's file, except for `WITHOUT_ELMO`.
`--config.KEY=VALUE` sets a setting in all rows. Each row is a run of `elmo-jax task train` in its own folder below
the workdir: if the command is stopped, run it again to resume. The table is printed, `gains.png` shows it, and
`gains.json` has the numbers of every seed; those of docs/results.md are `experiments/paper/gains_TASK.json`.

hardware  2 CPU cores
time      see the table of the task in docs/results.md
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elmo_jax.cli.main import main as elmo_jax
from elmo_jax.config_file import load_file
from elmo_jax.errors import UserError
from elmo_jax.files import write_json
from elmo_jax.runs.result import plot
from elmo_jax.tasks.core.task_report import shown
from results import table

TITLES = {
    "none": "without ELMo",
    "top": "top layer",
    "all": "all layers mixed",
    "input": "all layers mixed, at the input",
    "output": "all layers mixed, at the output",
    "both": "all layers mixed, at both",
    "trained": "all layers mixed, LSTMs trained",
}
SETTINGS = {
    "none": ["bilm="],
    "top": ["elmo.layers=top"],
    "all": ["elmo.layers=all"],
    "input": ["elmo.layers=all", "elmo.where=input"],
    "output": ["elmo.layers=all", "elmo.where=output"],
    "both": ["elmo.layers=all", "elmo.where=both"],
    # The biLM is trained slowly and from the top, as Howard and Ruder (2018) do; the rate was not tuned.
    "trained": [
        "elmo.layers=all",
        "elmo.vectors=computed",
        "elmo.trainable=lstms",
        "elmo.learning_rate=1e-4",
        "elmo.unfreeze_epochs=1",
    ],
}
# What `gains.json` has of the results of a row and of its seeds; `bilm` is the fingerprint of the biLM.
KEPT = ("task", "metric", "bilm", "examples", "dev", "test", "ensemble")
KEPT_OF_SEEDS = ("seed", "epoch", "dev", "test", "elmo")
# Settings of all rows, and what to do instead of setting them.
GIVEN = {
    "bilm": "give the biLM of the rows with ELMo with --bilm",
    "elmo.cache": "leave it out, since the rows share the layers in the folder layers/ of the workdir",
}
# Settings that dev chose for the model without ELMo, where it chose other ones for the model with ELMo.
WITHOUT_ELMO = {
    "sst": ["model.input_dropout=0.25"],
    "snli": ["model.attention_dropout=0.0", "model.matrix_penalty=0.0"],
}


def settings_of(row: str, task: str) -> list[str]:
    """Returns the settings that make a row of a task what its title says."""
    return SETTINGS[row] + (WITHOUT_ELMO.get(task, []) if row == "none" else [])


def arguments_of(row: str, options: argparse.Namespace, overrides: Sequence[str]) -> list[str]:
    """Returns the arguments of `elmo-jax` that train one row."""
    settings = [f"bilm={options.bilm}", f"elmo.cache={options.workdir / 'layers'}", *settings_of(row, options.task)]
    given = [f"--config.{setting}" for setting in settings]
    return [
        "task",
        "train",
        "--config",
        str(options.config),
        "--workdir",
        str(options.workdir / row),
        *given,
        *overrides,
    ]


def report(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the results of all rows as aligned text."""
    first = next(iter(found.values()))
    parts = [part for part in ("test", "dev") if part in first]
    rows = [[f"{first['task']}, {first['metric']}", *parts]]
    rows += [[TITLES[row], *(shown(result[part]) for part in parts)] for row, result in found.items()]
    return table(rows)


def numbers(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what `gains.json` says of each row: the biLM, and the numbers of every seed and of their ensemble."""
    return {
        row: {
            **{key: result[key] for key in KEPT if key in result},
            "seeds": [{key: seed[key] for key in KEPT_OF_SEEDS if key in seed} for seed in result["seeds"]],
        }
        for row, result in found.items()
    }


def draw(path: Path, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Draws every seed's number and the mean of each row, on test and on dev."""
    first = next(iter(found.values()))
    parts = [part for part in ("test", "dev") if part in first]
    with plot(path, 4.5 * len(parts), 0.6 + 0.5 * len(found)) as figure:
        for axes, part in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
            for place, result in enumerate(found.values()):
                seeds = [seed[part][result["metric"]] for seed in result["seeds"]]
                axes.plot(seeds, [place] * len(seeds), "o", color="tab:blue", alpha=0.5)
                axes.plot([result[part]["mean"]] * 2, [place - 0.3, place + 0.3], color="black")
            axes.set(title=f"{first['metric']} on {part}", ylim=(len(found) - 0.5, -0.5))
            axes.set_yticks(range(len(found)), [TITLES[row] for row in found] if part == parts[0] else [])
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="x", alpha=0.3)


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str], list[str]]:
    """Returns the options, the rows and the settings of all rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the experiment on a task")
    parser.add_argument("--bilm", required=True, metavar="BILM", help="a run, an export, a file or a packaged biLM")
    parser.add_argument("--workdir", type=Path, required=True, metavar="DIR", help="the folder of the runs")
    parser.add_argument(
        "--rows", default="none,top,all", metavar="R,R", help=f"some of {', '.join(TITLES)} (%(default)s)"
    )
    options, overrides = parser.parse_known_args(arguments)
    for override in overrides:
        if not override.startswith("--config.") or "=" not in override:
            parser.error(f"unknown option {override!r}; settings are given as --config.KEY=VALUE")
        key = override.split("=")[0].removeprefix("--config.")
        if key in GIVEN:
            parser.error(f"--config.{key}: the script sets it; {GIVEN[key]}")
    try:
        options.task = load_file(options.config).task
    except (UserError, AttributeError) as error:
        parser.error(str(error) if isinstance(error, UserError) else f"--config: {options.config} is not of a task")
    rows = options.rows.split(",")
    for row in rows:
        if row not in TITLES:
            parser.error(f"--rows: {row!r} is none of {', '.join(TITLES)}")
        if rows.count(row) > 1:
            parser.error(f"--rows: {row} is given twice")
        for setting in settings_of(row, options.task):
            key = f"--config.{setting.split('=')[0]}"
            if any(override.startswith(f"{key}=") for override in overrides):
                parser.error(f"{key}: the row {row} sets it; leave out the row or the setting")
    return options, rows, overrides


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains what is not trained, prints the table, and returns the exit status, which is that of `elmo-jax`."""
    options, rows, overrides = parse(arguments)
    found = {}
    for row in rows:
        status = elmo_jax(arguments_of(row, options, overrides))
        if status:
            return status
        found[row] = json.loads((options.workdir / row / "result.json").read_text(encoding="utf-8"))
    write_json(options.workdir / "gains.json", numbers(found))
    draw(options.workdir / "gains.png", found)
    print(f"\n{report(found)}\n\nnumbers  {options.workdir / 'gains.json'}\nplot     {options.workdir / 'gains.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
