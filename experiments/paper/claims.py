"""The numbers and claims of the paper's Tables 1, 2, 3 and 7, Figures 1 and 2 and section 5.1, and what was seen.

A difference is paired by seed and has the 95% interval of Student's t. The verdict is `seen` if the whole interval is
on the paper's side of zero, `not seen` if it is not, and `open` if a row is missing or has one seed, or if the two
differ in more than what is compared. That two are about equal is seen if the whole interval is within `MARGIN` of zero.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gains import Runs, is_row


class Table(NamedTuple):
    """A table or a figure of the paper."""

    title: str
    part: str  # the part of the data that the paper's numbers are of, "dev" or "test"
    tasks: tuple[str, ...]
    rows: dict[str, tuple[Any, ...]]  # by the paper's name: the row of `gains.py`, and the paper's number of each task
    places: Mapping[str, str] = {}  # where ELMo enters in the rows `all`, by task, if not where the experiment says

    def of(self, task: str) -> dict[str, str]:
        """Returns the row of `gains.py` by the paper's name of it."""
        return {name: row[0].replace("all", self.places.get(task, "all")) for name, row in self.rows.items()}

    def paper(self, task: str) -> dict[str, float]:
        """Returns the paper's numbers by its name of the row; of what it does not show, there are none."""
        column = 1 + self.tasks.index(task)
        return {name: row[column] for name, row in self.rows.items() if column < len(row)}


SYSTEMS = {"baseline": "none", "ELMo": "all"}
TASKS = ("squad", "snli", "srl", "coref", "ner", "sst")
SHARES = {"100%": "", "10%": "+tenth", "1%": "+hundredth", "0.1%": "+thousandth"}
NORMED = "layer norm"  # the row that is compared with one without
TABLES = {
    "table1": Table(
        "Table 1: baseline and ELMo",
        "test",
        TASKS,
        {
            "baseline": ("none", 81.1, 88.0, 81.4, 67.2, 90.15, 51.4),
            "ELMo": ("all", 85.8, 88.7, 84.6, 70.4, 92.22, 54.7),
        },
    ),
    "taglm": Table(
        "TagLM: the top layer after the first of two biLSTMs (Table 1, previous best)",
        "test",
        ("ner",),
        {"TagLM": ("taglm", 91.93), "ELMo": ("all", 92.22)},
    ),
    "table2": Table(
        "Table 2: the last layer and all layers",
        "dev",
        TASKS[:3],
        {
            "baseline": ("none", 80.8, 88.1, 81.6),
            "last layer only": ("all+last", 84.7, 89.1, 84.1),
            "all layers, λ = 1": ("all+strong", 85.0, 89.3, 84.6),
            "all layers, λ = 0.001": ("all+weak", 85.2, 89.5, 84.8),
        },
        {"squad": "input"},
    ),
    "table3": Table(
        "Table 3: where ELMo enters (with the baselines of Table 2)",
        "dev",
        TASKS[:4],  # the paper does not show coreference
        {
            "baseline": ("none", 80.8, 88.1, 81.6),
            "input only": ("input", 85.1, 88.9, 84.7),
            "input & output": ("both", 85.6, 89.5, 84.3),
            "output only": ("output", 84.8, 88.7, 80.9),
        },
    ),
    "table7": Table(
        "Table 7: word vectors and ELMo",
        "dev",
        TASKS[:3],
        {
            "GloVe": ("none", 80.8, 88.1, 81.6),
            "ELMo type layer": ("type+bare", 81.4, 88.5, 81.7),
            "ELMo": ("all+bare", 85.3, 89.1, 84.5),
            "ELMo + GloVe": ("all", 85.6, 89.5, 84.7),
        },
    ),
    "figure1": Table(
        "Figure 1: small training sets",
        "dev",
        TASKS[1:3],
        {f"{name}, {share}": (row + SHARES[share],) for share in SHARES for name, row in SYSTEMS.items()},
    ),
    "figure2": Table("Figure 2: the weights of the layers", "dev", TASKS, {"input": ("all",), "output": ("both",)}),
    "cove": Table(
        "Section 5.1: CoVe in the place of ELMo",
        "dev",
        ("snli",),
        {
            "baseline": ("none", 88.1),
            "CoVe, last layer only": ("cove+last", 88.2),
            "CoVe, all layers, λ = 1": ("cove+strong", 88.7),
            "ELMo, last layer only": ("all+last", 89.1),
            "ELMo, all layers, λ = 1": ("all+strong", 89.3),
        },
    ),
    "lambda": Table(
        "Section 5.1: λ in named entities (not shown in the paper)",
        "dev",
        ("ner",),
        {"λ = 0": ("all+zero",), "λ = 0.001": ("all+weak",), "λ = 0.1": ("all",), "λ = 1": ("all+strong",)},
    ),
    "practice": Table(
        "Sections 3.2 and 3.3, and A.2: γ, the layer norm and dropout",
        "dev",
        ("snli",),
        {
            "baseline": ("none",),
            "ELMo": ("all+plain",),
            "γ = 1": ("all+plain+unscaled",),
            "last layer only, γ = 1": ("all+last+plain+unscaled",),
            NORMED: ("all+tokens",),
            f"{NORMED}, γ = 1": ("all+tokens+unscaled",),
            f"{NORMED}, last layer only, γ = 1": ("all+last+tokens+unscaled",),
            f"{NORMED}, dropout on ELMo": ("all+tokens+dropped",),
            "input only": ("input",),
            f"{NORMED}, input only": ("input+tokens",),
        },
    ),
}
# What the paper says of pairs of rows without a number: the text, and the sign as for `judged`.
SAID = {
    ("table3", "coref"): (
        ("input & output", "input only", "below 0 (not shown)", -1),
        ("output only", "input only", "below 0 (not shown)", -1),
    ),
    ("lambda", "ner"): tuple((row, "λ = 0", "about 0 (not shown)", None) for row in ("λ = 0.001", "λ = 0.1", "λ = 1")),
    ("practice", "snli"): (
        ("ELMo", "γ = 1", '"of practical importance"', 1),
        ("last layer only, γ = 1", "baseline", '"well below the baseline"', -1),
        (NORMED, "ELMo", "above 0 in some cases", 1),
        (f"{NORMED}, input only", "input only", "above 0 in some cases", 1),
    ),
    ("cove", "snli"): (
        ("CoVe, last layer only", "baseline", "+0.1", 1),
        ("CoVe, all layers, λ = 1", "baseline", "+0.6", 1),
        ("CoVe, all layers, λ = 1", "CoVe, last layer only", "+0.5", 1),
        ("ELMo, last layer only", "CoVe, last layer only", "+0.9, a smaller increase with CoVe", 1),
        ("ELMo, all layers, λ = 1", "CoVe, all layers, λ = 1", "+0.6, a smaller increase with CoVe", 1),
    ),
}
ENSEMBLES = {"squad": (87.4, 11), "snli": (89.3, 5)}  # the paper's score and number of models (section 4)
PRINTED = {"ner": "+2.06 (21%)"}  # an increase in Table 1 that is not the difference of its rounded numbers
MARGIN = 1.0  # points: the largest difference that counts as about 0
EVEN = 0.05  # the largest distance from 1/3 of weights that count as equal (Table 2, λ = 1)
FAVORED = ("coref", "squad")  # the tasks that favor the first LSTM layer at the input strongly (section 5.5)
STRONGLY = 1 / 2  # the least weight of a layer that counts as that, since it is more than those of the others together

Numbers = Mapping[str, Any]  # of a row in `gains.json`


class Claim(NamedTuple):
    """A claim of the paper on a task, and what was measured."""

    text: str
    paper: str
    ours: str = "not measured"
    verdict: str = "open"


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the mean of at least two values and the ends of its 95% interval by Student's t."""
    from scipy import stats  # whose import takes a second

    mean = statistics.fmean(values)
    half = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def judged(text: str, paper: str, values: Sequence[float], sign: int | None, digits: int = 2) -> Claim:
    """Returns the claim that the mean of a value per seed is above zero (sign 1), below (-1), not below (0), or zero.

    That it is about zero (sign None) is seen if the whole interval is within `MARGIN` of zero.
    """
    if len(values) < 2:
        return Claim(text, paper, *(f"{value:+.{digits}f} (n = 1)" for value in values))
    mean, low, high = interval(values)
    seen = {1: low > 0, -1: high < 0, 0: high >= 0, None: -MARGIN < low and high < MARGIN}[sign]
    ours = "{:+.{n}f} [{:+.{n}f}, {:+.{n}f}]".format(mean, low, high, n=digits)
    return Claim(text, paper, ours, "seen" if seen else "not seen")


def paired(rows: Mapping[str, Numbers], part: str, plus: Sequence[str], minus: Sequence[str]) -> list[float]:
    """Returns the sum of some rows minus that of others for each seed that all have; nothing if a row is missing."""
    if not {*plus, *minus} <= rows.keys():
        return []
    sums: dict[int, list[float]] = {}
    for name, sign in [*((name, 1) for name in plus), *((name, -1) for name in minus)]:
        for seed in rows[name]["seeds"]:
            sums.setdefault(seed["seed"], []).append(sign * seed[part][rows[name]["metric"]])
    return [sum(terms) for terms in sums.values() if len(terms) == len(plus) + len(minus)]


def part_of(table: Table, conditions: Mapping[str, Numbers]) -> str:
    """Returns the part of the data of the paper's numbers, or "dev" if a row has no numbers of it."""
    return table.part if all(table.part in row for row in conditions.values()) else "dev"


def norm_of(row: Numbers) -> str:
    """Returns the layer norm that a row has; bilm-tf's norm over a batch leaves one layer alone as it is."""
    settings = dict(setting.split("=", 1) for setting in row.get("settings", ()))
    norm = str(row.get("layer_norm", settings.get("elmo.layer_norm", "none")))
    return norm if norm == "tokens" or settings.get("elmo.layers", "all") == "all" else "none"


def compared(conditions: Mapping[str, Numbers], part: str, pair: tuple[str, str, str, int | None]) -> Claim:
    """Returns the claim on a difference; open if their layer norms differ, unless that is compared."""
    upper, lower, paper, sign = pair
    norms = {norm_of(conditions[row]) for row in (upper, lower) if conditions.get(row, {}).get("bilm")}
    if len(norms) > 1 and not upper.startswith(NORMED):
        return Claim(f"{upper} - {lower}", paper, "their layer norms differ")
    return judged(f"{upper} - {lower}", paper, paired(conditions, part, [upper], [lower]), sign)


def claims(
    name: str, task: str, conditions: Mapping[str, Numbers], every: Mapping[str, Any] | None = None
) -> list[Claim]:
    """Returns the paper's claims on a task in a table or figure; `every` has the rows of all tasks."""
    if name == "figure1":
        return _on_shares(task, conditions)
    if name == "figure2":
        return _on_weights(task, conditions, every or {task: conditions})
    table, part = TABLES[name], part_of(TABLES[name], conditions)
    if (name, task) in SAID:
        return [compared(conditions, part, pair) for pair in SAID[name, task]]
    paper = table.paper(task)
    first, *others = table.rows
    result = []
    for upper, lower in [*((row, first) for row in others), *zip(others[1:], others, strict=False)]:
        gain = paper[upper] - paper[lower]
        claim = compared(conditions, part, (upper, lower, f"{round(gain, 2):+}", 1 if gain > 0 else -1))
        if name == "table1":  # with the relative increase, which is the share of the errors that are gone
            claim = claim._replace(paper=PRINTED.get(task, f"{claim.paper} ({gain / (100 - paper[lower]):.1%})"))
            values = paired(conditions, part, [upper], [lower])
            errors = 100 - conditions[lower][part]["mean"] if values else 0.0
            if errors:
                claim = claim._replace(ours=f"{claim.ours} ({statistics.fmean(values) / errors:.1%})")
        result.append(claim)
    if name == "table7":  # "most of the gains … are due to the contextual information" (section 5.6)
        plus, minus = ["ELMo", "GloVe"], ["ELMo type layer"] * 2
        contextual = sum(paper[row] for row in plus) - sum(paper[row] for row in minus)
        text = "gain of ELMo over its type layer - gain of that over GloVe"
        result.append(judged(text, f"{round(contextual, 2):+}", paired(conditions, part, plus, minus), 1))
    return [*result, _on_even_weights(conditions)] if name == "table2" else result


def _on_even_weights(conditions: Mapping[str, Numbers]) -> Claim:
    """Returns the claim that λ = 1 leaves the weights of the layers almost equal (sections 3.2 and 5.1)."""
    row = "all layers, λ = 1"
    mixes = [mix["weights"] for seed in conditions.get(row, {"seeds": []})["seeds"] for mix in seed["elmo"].values()]
    claim = Claim(f"{row}: largest distance of a weight from the mean", "effectively a simple average")
    if not mixes:
        return claim
    distance = max(abs(weight - 1 / len(mix)) for mix in mixes for weight in mix)
    return claim._replace(ours=f"{distance:.3f}", verdict="seen" if distance <= EVEN else "not seen")


def _on_shares(task: str, conditions: Mapping[str, Numbers]) -> list[Claim]:
    """Returns the claims of Figure 1: each share's gain, that it grows, and ELMo against ten times the examples."""
    result = []
    for share in SHARES:
        values = paired(conditions, "dev", [f"ELMo, {share}"], [f"baseline, {share}"])
        result.append(judged(f"ELMo - baseline, {share}", "above 0", values, 1))
    for large, small in itertools.pairwise(SHARES):
        plus, minus = [f"ELMo, {small}", f"baseline, {large}"], [f"baseline, {small}", f"ELMo, {large}"]
        values = paired(conditions, "dev", plus, minus)
        result.append(judged(f"gain at {small} - gain at {large}", "above 0", values, 1))
    if {"baseline, 100%", "ELMo, 100%"} <= conditions.keys():
        result.append(_on_steps(task, conditions["baseline, 100%"], conditions["ELMo, 100%"]))
    if task == "srl":
        values = paired(conditions, "dev", ["ELMo, 1%"], ["baseline, 10%"])
        result.append(judged("ELMo, 1% - baseline, 10%", "about 0", values, 0))
    return result


def weights_of(conditions: Mapping[str, Numbers], where: str) -> list[list[float]]:
    """Returns the softmaxed weights of the layers at a place in Figure 2 for each seed; nothing without a run."""
    return [seed["elmo"][where]["weights"] for seed in conditions.get(where, {"seeds": []})["seeds"]]


def _on_weights(task: str, conditions: Mapping[str, Numbers], every: Mapping[str, Any]) -> list[Claim]:
    """Returns the claims of Figure 2 on the weights of the layers at the input and at the output."""
    inputs, outputs = (weights_of(conditions, where) for where in ("input", "output"))
    first = [weights[1] - max(weights[0], *weights[2:]) for weights in inputs]
    lower = [statistics.fmean(weights[:-1]) - weights[-1] for weights in outputs]
    if task in FAVORED:
        values = [weights[1] - STRONGLY for weights in inputs]
        peaks = [judged(f"input: weight of the first LSTM layer - {STRONGLY}", "strongly favored", values, 1, 3)]
    else:
        peaks = [_less_peaked(inputs, other, weights_of(every.get(other, {}), "input")) for other in FAVORED]
    return [
        judged("input: first LSTM layer - largest other weight", "above 0", first, 1, 3),
        *peaks,
        judged("output: mean of the lower layers - top layer", "above 0", lower, 1, 3),
    ]


def _less_peaked(weights: list[list[float]], other: str, weights_of_other: list[list[float]]) -> Claim:
    """Returns the claim that the largest weight is below that of another task, by Welch's interval of two samples."""
    claim = Claim(f"input: largest weight - that of {other}", "below 0 (less peaked)")
    ours, theirs = ([max(mix) for mix in mixes] for mixes in (weights, weights_of_other))
    if min(len(ours), len(theirs)) < 2:
        return claim
    from scipy import stats

    low, high = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    text = f"{statistics.fmean(ours) - statistics.fmean(theirs):+.3f} [{low:+.3f}, {high:+.3f}]"
    return claim._replace(ours=text, verdict="seen" if high < 0 else "not seen")


def _on_steps(task: str, baseline: Numbers, elmo: Numbers) -> Claim:
    """Returns the claim that ELMo passes the baseline's best dev score after fewer steps."""
    text = "steps with ELMo until the baseline's best score is passed, of the baseline's steps"
    claim = Claim(text, "10 of 486 epochs (98% fewer)" if task == "srl" else "fewer")
    curves = {seed["seed"]: seed["curve"] for seed in elmo["seeds"]}
    pairs = []
    for seed in (seed for seed in baseline["seeds"] if seed["seed"] in curves):
        best = seed["dev"][baseline["metric"]]
        pairs.append((next((step for step, score in curves[seed["seed"]] if score > best), None), seed["step"]))
    passed = [(step, best) for step, best in pairs if step is not None]
    if len(passed) < len(pairs):
        ours = f"not passed with {len(pairs) - len(passed)} of {len(pairs)} seeds"
    else:
        steps, best_steps = (statistics.fmean(counts) for counts in zip(*passed, strict=True))
        ours = f"{steps:,.0f} of {best_steps:,.0f} ({1 - steps / best_steps:.0%} fewer)"
    seen = len(passed) == len(pairs) and all(step < best for step, best in passed)
    return claim._replace(ours=ours, verdict=("seen" if seen else "not seen") if len(pairs) > 1 else claim.verdict)


@functools.cache  # building a config takes 8 ms, and each table compares all rows
def _config(runs: Runs, row: str) -> str:
    return str(runs.config(row))


def row_in(numbers: Mapping[str, Numbers], row: str, runs: Runs) -> str:
    """Returns the name of the row in `numbers` that has the same settings; the row itself if there is none."""
    return next((name for name in filter(is_row, numbers) if _config(runs, name) == _config(runs, row)), row)


def trained(table: Table, task: str, numbers: Mapping[str, Numbers], runs: Runs) -> dict[str, Numbers]:
    """Returns the rows of a table that are trained."""
    rows = {name: row_in(numbers, row, runs) for name, row in table.of(task).items()}
    return {name: numbers[row] for name, row in rows.items() if row in numbers}
