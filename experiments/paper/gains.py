r"""Measures what ELMo gains on a task: one training per row and seed. `grid.py` makes the paper's tables of such rows.

    python experiments/paper/gains.py --config experiments/task_ner.py --bilm english --workdir runs/ner_gains
    python experiments/paper/gains.py --config experiments/task_snli.py --bilm english --workdir runs/snli_gains \
        --rows none,input,output,both

`ROWS` are: `none`, without ELMo; `top` or `token`, one layer alone; `type`, the token layer at the input (Table 7);
`all`, all layers mixed where the experiment has ELMo; `input`, `output` and `both`, all layers mixed there; `taglm`
(named entities), as TagLM (Peters et al. 2017), which needs two biLSTMs; `trained`, the biLM's LSTMs trained
with the task; `tuned`, the biLM of --tuned, which `supplement.py` fine-tunes; and `cove`, the model of --cove, which
`cove/train.py` trains. `CHANGES` may follow after a `+`, as in `all+last`, or a share of the training examples, as in
`none+tenth`: the first ones of one random order, so that each share is a part of the larger ones. The number of epochs
is then divided by the square root of the share, since an epoch has fewer steps, there are about as many evaluations as
on all examples, and `train.patience` is 0, since the first of them may all score zero.

Everything else is as in the experiment's file, except for `WITHOUT_ELMO`; `--config.KEY=VALUE` sets a setting in all
rows. Each row is a run of `elmo-jax task train` in its own folder: if the command is stopped, run it again to resume.
`gains.json`, which is written after each row, has the settings, scores and seconds of every seed. A row of this file
without a folder is not trained again, so the file is enough to continue on another machine. Those of docs/results.md
are `experiments/paper/gains_TASK.json`.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from etils import epath
from ml_collections import ConfigDict

from cove.vectors import open_cove
from elmo_jax.cli.main import main as elmo_jax
from elmo_jax.config_file import load_file, with_overrides
from elmo_jax.distributed.cpu import keep_freed_memory
from elmo_jax.embedding.bilm import load_bilm
from elmo_jax.errors import UserError
from elmo_jax.files import write_text
from elmo_jax.runs.metrics import read_records
from elmo_jax.runs.result import read_result
from elmo_jax.tasks.core.run import shown
from elmo_jax.tasks.core.setup import OTHER_MODELS
from elmo_jax.tasks.formats.sources import read_part
from elmo_jax.tasks.registry import get_task, task_config
from results import table

ROWS = {
    "none": ["bilm="],
    "top": ["elmo.layers=top"],
    "token": ["elmo.layers=token"],
    "type": ["elmo.layers=token", "elmo.where=input"],
    "all": ["elmo.layers=all"],
    "input": ["elmo.layers=all", "elmo.where=input"],
    "output": ["elmo.layers=all", "elmo.where=output"],
    "both": ["elmo.layers=all", "elmo.where=both"],
    "taglm": ["elmo.layers=top", "elmo.where=after_first"],
    # The biLM is trained slowly and from the top, as Howard and Ruder (2018) do; the rate was not tuned.
    "trained": [
        *("elmo.layers=all", "elmo.precompute=false", "elmo.trainable=lstms"),
        *("elmo.learning_rate=1e-4", "elmo.unfreeze_epochs=1"),
    ],
    "tuned": ["elmo.layers=all"],
    "cove": ["elmo.layers=all"],
}
CHANGES = {  # `tokens` and `batch` are layer norms, `plain` is without one; `dropped` is with dropout on ELMo
    "last": ["elmo.layers=top"],
    "strong": ["elmo.regularization=1.0"],
    "weak": ["elmo.regularization=0.001"],
    "zero": ["elmo.regularization=0.0"],
    "bare": ["word_vectors.path=", "word_vectors.dim=0"],
    "tokens": ["elmo.layer_norm=tokens"],
    "batch": ["elmo.layer_norm=without_bos_eos"],
    "plain": ["elmo.layer_norm=none"],
    "unscaled": ["elmo.train_gamma=False"],
    "dropped": ["elmo.dropout=0.5"],
    "one": ["model.layers=(100,)"],  # one biLSTM in `ner`
}
SHARES = {"tenth": 0.1, "hundredth": 0.01, "thousandth": 0.001}
# What `gains.json` has of the results of a row and of its seeds, in addition to the settings and to the `curve`, the
# dev score by step; `bilm` is the fingerprint of the biLM.
KEPT = ("task", "metric", "bilm", "examples", "dev", "test", "ensemble")
KEPT_OF_SEEDS = ("seed", "step", "epoch", "seconds", "dev", "test", "elmo")
PATHS = ("data.train=", "data.dev=", "data.test=", "word_vectors.path=")  # settings that may differ between machines
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
OTHER_MODELS["cove"] = open_cove


def is_row(name: str) -> bool:
    first, *more = name.split("+")
    return first in ROWS and all(part in CHANGES.keys() | SHARES.keys() for part in more)


def settings_of(row: str, task: str) -> list[str]:
    """Returns the settings of a row of a task, without those of a share."""
    parts = [setting for part in row.split("+") for setting in (ROWS | CHANGES).get(part, [])]
    return parts + (WITHOUT_ELMO.get(task, []) if row.split("+")[0] == "none" else [])


class Runs(NamedTuple):
    """The trainings of one task, one per row, which share the stored layers of the biLM."""

    experiment: Path  # the file of the experiment
    bilm: str  # the biLM of the rows with ELMo
    workdir: Path  # the folder with a folder per row
    overrides: tuple[str, ...] = ()  # settings of all rows, as on the command line
    cove: str = ""  # the CoVe of the rows `cove`
    tuned: str = ""  # the biLM of the rows `tuned`

    def config(self, row: str = "all") -> ConfigDict:
        """Returns the settings of a row. Raises `UserError` if the experiment or a setting is wrong."""
        return with_overrides(load_file(self.experiment), self.settings(row))

    def settings(self, row: str) -> list[str]:
        """Returns the settings of a row that are not those of the experiment, as on the command line."""
        config = with_overrides(load_file(self.experiment), self.overrides)
        settings = [f"bilm={self.bilm_of(row)}", *settings_of(row, config.task)]
        for share in (SHARES[part] for part in row.split("+") if part in SHARES):
            settings.append(f"data.train_fraction={config.data.train_fraction * share}")
            settings += [f"train.epochs={round(config.train.epochs / share**0.5)}", "train.patience=0"]
        return [*self.overrides, *(f"--config.{setting}" for setting in settings)]

    def bilm_of(self, row: str) -> str:
        return {"cove": self.cove, "tuned": self.tuned}.get(row.split("+")[0], self.bilm)

    def check(self, rows: Sequence[str]) -> None:
        """Raises `UserError` for a setting of all rows that one of the rows sets too, or is another in `gains.json`."""
        given = {override.split("=")[0].removeprefix("--config.") for override in self.overrides}
        for key in (key for key in GIVEN if key in given):
            raise UserError(f"--config.{key}: the script sets it; {GIVEN[key]}")
        task = load_file(self.experiment).get("task")
        if task is None:
            raise UserError(f"--config: {self.experiment} is not of a task")
        for row in rows:
            if row.startswith("cove") and (not self.cove or open_cove(self.cove) is None):
                raise UserError(f"--cove: the row {row} needs the workdir of cove/train.py, got {self.cove!r}")
            if row.startswith("tuned") and not self.tuned:
                raise UserError(f"--tuned: the row {row} needs the run of supplement.py")
            for key in (setting.split("=")[0] for setting in settings_of(row, task)):
                if key in given:
                    raise UserError(f"--config.{key}: the row {row} sets it; leave out the row or the setting")
            self.config(row)
        for row, known in self.numbers().items():
            if self.bilm_of(row) and not (self.workdir / row).exists():
                self._check_known(row, known)

    def train(self, row: str) -> int:
        """Trains a row, or resumes it, and adds it to `gains.json`; returns the exit status of `elmo-jax`.

        A row of `gains.json` without a folder is not trained again.
        """
        folder = self.workdir / row
        if row in self.numbers() and not folder.exists():
            return 0
        command = ["task", "train", "--config", str(self.experiment), "--workdir", str(folder)]
        command += [f"--config.elmo.cache={self.workdir / 'layers'}", *self.settings(row)]
        if any(part in SHARES for part in row.split("+")):
            command.append(f"--config.train.evaluate_every={self._steps_between_evaluations(row)}")
        status = elmo_jax(command)
        if not status:
            rows = {**self.numbers(), row: self._result(row)}
            lines = (f"{json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in rows.items())
            write_text(self.workdir / "gains.json", "{\n" + ",\n".join(lines) + "\n}\n")
        return status

    def _steps_between_evaluations(self, row: str) -> int:
        """Returns the steps between the evaluations of a share, each of which would take longer than an epoch."""
        config = task_config(self.config(row))
        examples = config.data.train_fraction * len(read_part(get_task(config.task), config, "train"))
        steps = max(1, round(examples / config.train.batch_size)) * config.train.epochs
        return max(1, round(steps / self.config("none").train.epochs))

    def numbers(self) -> dict[str, dict[str, Any]]:
        path = self.workdir / "gains.json"
        numbers: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return numbers

    def _result(self, row: str) -> dict[str, Any]:
        folder = epath.Path(self.workdir / row)
        result = read_result(folder) or {}
        metric, seeds = result["metric"], []
        for seed in result["seeds"]:
            kept = {key: seed[key] for key in KEPT_OF_SEEDS if key in seed}
            for part in {"dev", "test"} & kept.keys():  # without the scores of single roles and types
                kept[part] = {key: value for key, value in kept[part].items() if not key.startswith(f"{metric}_")}
            records = read_records(folder / f"seed_{seed['seed']}" / "metrics.jsonl")
            kept["curve"] = [[r["step"], r[f"dev/{metric}"]] for r in records if f"dev/{metric}" in r]
            seeds.append(kept)
        kept = {key: result[key] for key in KEPT if key in result}
        return {**kept, "layer_norm": self.config(row).elmo.layer_norm, "settings": self._recorded(row), "seeds": seeds}

    def _recorded(self, row: str) -> list[str]:
        given = (setting.removeprefix("--config.") for setting in self.settings(row))
        return [setting for setting in given if not setting.startswith("bilm=")]

    def _check_known(self, row: str, known: Mapping[str, Any]) -> None:
        path = self.workdir / "gains.json"
        before, now = (
            [setting for setting in settings if not setting.startswith(PATHS)]
            for settings in (known["settings"], self._recorded(row))
        )
        if before != now:
            raise UserError(f"{path}: the row {row} has the settings {before}, not {now}; remove it, or give the same")
        bilm = self.bilm_of(row)
        if known["bilm"] is not None and known["bilm"] != fingerprint_of(bilm):
            raise UserError(f"{path}: the row {row} is of the biLM {known['bilm'][:12]}, not of {bilm}; remove it")


@functools.cache
def fingerprint_of(bilm: str) -> str:
    return (open_cove(bilm) or load_bilm(bilm)).vectors_fingerprint


def report(numbers: Mapping[str, Mapping[str, Any]]) -> str:
    first = next(iter(numbers.values()))
    parts = [part for part in ("test", "dev") if part in first]
    rows = [[f"{first['task']}, {first['metric']}", *parts]]
    rows += [[row, *(shown(result[part]) for part in parts)] for row, result in numbers.items()]
    return table(rows)


def parse(arguments: Sequence[str] | None) -> tuple[Runs, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the experiment on a task")
    parser.add_argument("--bilm", required=True, metavar="BILM", help="a run, an export, a file or a packaged biLM")
    parser.add_argument("--cove", default="", metavar="DIR", help="the workdir of cove/train.py, for the rows cove")
    parser.add_argument("--tuned", default="", metavar="DIR", help="the run of supplement.py, for the row tuned")
    parser.add_argument("--workdir", type=Path, required=True, metavar="DIR", help="the folder of the runs")
    rows = f"some of {', '.join(ROWS)} (%(default)s)"
    parser.add_argument("--rows", default="none,top,all", metavar="R,R", help=rows)
    options, overrides = parser.parse_known_args(arguments)
    check_overrides(parser, overrides)
    rows = options.rows.split(",")
    for row in rows:
        if not is_row(row):
            parser.error(f"--rows: {row!r} is none of {', '.join(ROWS)}")
        if rows.count(row) > 1:
            parser.error(f"--rows: {row} is given twice")
    runs = Runs(options.config, options.bilm, options.workdir, tuple(overrides), options.cove, options.tuned)
    try:
        runs.check(rows)
    except UserError as error:
        parser.error(str(error))
    return runs, rows


def check_overrides(parser: argparse.ArgumentParser, overrides: Sequence[str]) -> None:
    """Ends the command if an argument that is no option is no setting either."""
    for override in overrides:
        if not override.startswith("--config.") or "=" not in override:
            parser.error(f"unknown option {override!r}; settings are given as --config.KEY=VALUE")


def main(arguments: Sequence[str] | None = None) -> int:
    keep_freed_memory()  # `elmo-jax` does so too late, since threads begin when the biLM is opened here
    runs, rows = parse(arguments)
    for row in rows:
        status = runs.train(row)
        if status:
            return status
    numbers = runs.numbers()
    print(f"\n{report({row: numbers[row] for row in rows})}\n\nnumbers  {runs.workdir / 'gains.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
