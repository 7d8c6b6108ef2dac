"""Writes the paper's tables and claims with our numbers next to them into docs/results.md, and draws Figures 1 and 2.

    python experiments/paper/page.py

The numbers are those of `gains_TASK.json` in this folder, which `gains.py` and `grid.py` write, and those of
`supplement_TASK.json`, which `supplement.py` writes. A table replaces what is between `<!-- NAME -->` and
`<!-- end -->`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from claims import ENSEMBLES, SYSTEMS, TABLES, Numbers, Table, claims, interval, paired, part_of, trained, weights_of
from elmo_jax.runs.result import plot
from gains import Runs

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "results.md"
# The paper's perplexity before and after fine-tuning, and what that gained on dev (section A.1 of its supplement).
FINE_TUNED = {
    "squad": (99.1, 43.5, ""),  # of the paragraphs
    "snli": (72.1, 16.8, "+0.6"),
    "ner": (103.2, 46.3, ""),
    "sst": (131.5, 78.6, "about 0"),
}
_ROWS = {"frozen": ("all",), "fine-tuned": ("tuned",), "trained": ("trained",)}
TUNED = Table("Section A.1: the biLM fine-tuned on the text of the task", "dev", tuple(FINE_TUNED), _ROWS)
STYLES: dict[str, dict[str, Any]] = {
    "baseline": {"color": "0.45", "ls": "--", "marker": "s"},
    "ELMo": {"color": "black", "ls": "-", "marker": "o"},
}
HEAD = ["", "paper", "here", "verdict", "command", "minutes"]
Measured = Mapping[str, Mapping[str, Numbers]]  # by task, and by the paper's name of the row


def read(name: str) -> dict[str, Any]:
    path = FOLDER / name
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def measured(table: Table) -> Measured:
    """Returns the numbers of the rows of a table in the files of this folder; a task without any is left out."""
    by_task = {}
    for task in table.tasks:
        numbers = read(f"gains_{task}.json")
        runs = Runs(FOLDER.parent / f"task_{task}.py", "english", FOLDER, (), "cove", "tuned")
        by_task[task] = trained(table, task, numbers, runs)
    return {task: rows for task, rows in by_task.items() if rows}


def value(row: Numbers | None, part: str) -> str:
    """Returns the mean, the standard deviation and the number of seeds of a row; "open" if it is not measured."""
    return f"{row[part]['mean']:.2f} ± {row[part]['sd']:.2f} ({row[part]['n']})" if row else "open"


def lines(cells: list[list[str]]) -> str:
    rows = [cells[0], ["---"] * len(cells[0]), *cells[1:]]
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |").replace("|  |", "| |") for row in rows)


def rows_of(name: str, by_task: Measured) -> str:
    table = TABLES[name]
    cells = [["", *(head for task in by_task for head in (f"{task}, paper", f"{task}, here"))]]
    for label in table.rows:
        cells.append([label])
        for task, rows in by_task.items():
            cells[-1] += [str(table.paper(task).get(label, "")), value(rows.get(label), part_of(table, rows))]
    if name == "table1":
        for label in table.rows:
            cells.append([f"{label}, models together"])
            for task, rows in by_task.items():
                paper = "{} ({})".format(*ENSEMBLES[task]) if label == "ELMo" and task in ENSEMBLES else "–"
                row = rows.get(label, {})
                score = f"{row['ensemble']['test'][row['metric']]:.2f}" if "ensemble" in row else ""
                cells[-1] += [paper, f"{score} ({len(row['seeds'])})" if score else "–"]
    columns = [list(column) for column in zip(*cells, strict=True)]
    return f"**{table.title}** (F1 or accuracy on {table.part})\n\n{lines(columns)}"


def shares(by_task: Measured) -> str:
    title, _, _, labels, *_ = TABLES["figure1"]
    cells = [[label, *(value(rows.get(label), "dev") for rows in by_task.values())] for label in labels]
    text = f"**{title}** (F1 or accuracy on dev)\n\n{lines([['', *by_task], *cells])}"
    plot = "\n\n![Figure 1: dev scores over the share of the training examples](plots/figure1.png)"
    return text + plot * any(len(rows) > len(SYSTEMS) for rows in by_task.values())


def weights(by_task: Measured) -> str:
    cells = [["", "input: token", "first", "second", "output: token", "first", "second"]]
    for task, rows in by_task.items():
        cells.append([task])
        for where in ("input", "output"):
            mixes = weights_of(rows, where)
            cells[-1] += [f"{weight:.2f}" for weight in np.mean(mixes, axis=0)] if mixes else ["open"] * 3
    plot = "![Figure 2: the weights of the layers](plots/figure2.png)"
    return f"**{TABLES['figure2'].title}** (means over the seeds)\n\n{lines(cells)}\n\n{plot}"


def fine_tuned() -> str:
    heads = ["perplexity, paper", "here", "biLM frozen", "fine-tuned", "difference, paper", "here"]
    cells = [["", *heads, "its LSTMs trained with the task"]]
    for task, rows in measured(TUNED).items():
        (before, after, gain), supplement = FINE_TUNED[task], read(f"supplement_{task}.json")
        here = f"{supplement['before']:.1f} → {supplement['after'][supplement['best']]:.1f}" if supplement else "open"
        values = paired(rows, "dev", ["fine-tuned"], ["frozen"])
        difference = "{:+.2f} [{:+.2f}, {:+.2f}]".format(*interval(values)) if values else "open"
        scores = [value(rows.get(row), "dev") for row in TUNED.rows]
        if supplement and supplement["after"][supplement["best"]] >= supplement["before"]:
            scores[1], difference = "no better biLM", "–"
        cells.append([task, f"{before} → {after}", here, *scores[:2], gain, difference, scores[2]])
    return f"**{TUNED.title}** (perplexity, F1 and accuracy on dev)\n\n{lines(cells)}"


def verdicts(name: str, by_task: Measured) -> list[list[str]]:
    """Returns a line for each claim of a table on a task, with its command and the minutes of its trainings."""
    cells = []
    for task, rows in by_task.items():
        trainings = {id(row): row for row in rows.values()}.values()  # a row may have two names in a table
        minutes = sum(seed["seconds"] for row in trainings for seed in row["seeds"]) / 60
        command = f"`grid.py {name} --tasks {task}`"
        for claim in claims(name, task, rows, by_task):
            text = f"{TABLES[name].title.split(':')[0]}, {task}: {claim.text}"
            cells.append([cell.replace(" - ", " − ") for cell in (text, *claim[1:], command, f"{minutes:.0f}")])
    return cells


def rendered(name: str, by_task: Measured) -> str:
    return {"figure1": shares, "figure2": weights}.get(name, lambda by_task: rows_of(name, by_task))(by_task)


def filled(text: str) -> str:
    tables = {name: by_task for name, table in TABLES.items() if (by_task := measured(table))}
    parts = {name: rendered(name, by_task) for name, by_task in tables.items()} | {"supplement": fine_tuned()}
    parts["claims"] = lines([HEAD, *(row for name, by_task in tables.items() for row in verdicts(name, by_task))])

    def one(match: re.Match[str]) -> str:
        return f"{match[1]}\n{parts.get(match[2], 'Not measured yet.')}\n\n{match[3]}"

    return re.sub(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", one, text, flags=re.DOTALL)


def draw_shares(path: Path, by_task: Measured) -> None:
    with plot(path, 4.5 * len(by_task), 3.8) as figure:
        for axes, (task, rows) in zip(figure.subplots(1, len(by_task), squeeze=False)[0], by_task.items(), strict=True):
            ticks = sorted({float(label.split(", ")[1].rstrip("%")) for label in rows})
            for system, style in STYLES.items():
                points = [
                    (float(label.split(", ")[1].rstrip("%")), row["dev"]["mean"], row["dev"]["sd"] or 0.0)
                    for label, row in rows.items()
                    if label.startswith(system)
                ]
                axes.errorbar(*zip(*points, strict=True), label=system, capsize=3, ms=5, **style)
            axes.set_xscale("log")
            axes.set_xticks(ticks, [f"{tick:g}%" for tick in ticks])
            axes.minorticks_off()
            axes.set(title=task, xlabel="training examples", ylabel=f"{next(iter(rows.values()))['metric']} on dev")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.3)
            axes.legend(frameon=False)


def draw_weights(path: Path, by_task: Measured) -> None:
    """Draws Figure 2: the weight of each layer in the mixes of each task, below 1/3 hatched and above 2/3 speckled."""
    with plot(path, 9.0, 1.2 + 0.5 * len(by_task)) as figure:
        for axes, where in zip(figure.subplots(1, 2), ("input", "output"), strict=True):
            layers = 0
            for number, rows in enumerate(by_task.values()):
                mixes = weights_of(rows, where)
                for layer, weight in enumerate(np.mean(mixes, axis=0) if mixes else ()):
                    hatch = "---" if weight < 1 / 3 else ".." if weight > 2 / 3 else ""
                    style = {"facecolor": str(1 - 0.5 * weight), "edgecolor": "0.35"}
                    axes.barh(number, 1, 1, layer - 0.5, hatch=hatch, lw=0.5, **style)
                    box = style | {"edgecolor": "none", "pad": 1.5}  # keeps the hatches off the number
                    axes.text(layer, number, f"{weight:.2f}", ha="center", va="center", bbox=box)
                    layers = max(layers, layer + 1)
            axes.set_xticks(range(layers), ["token", *(f"LSTM {layer}" for layer in range(1, layers))][:layers])
            axes.set_yticks(range(len(by_task)), by_task)
            axes.set(title=where, xlim=(-0.5, max(layers, 1) - 0.5), ylim=(len(by_task) - 0.5, -0.5))
            axes.tick_params(length=0)


if __name__ == "__main__":
    text = filled(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
    if "figure1.png" in text:
        draw_shares(PAGE.parent / "plots" / "figure1.png", measured(TABLES["figure1"]))
    draw_weights(PAGE.parent / "plots" / "figure2.png", measured(TABLES["figure2"]))
