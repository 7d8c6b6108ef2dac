"""The report of a finished training of a biLM: `result.json`, `curve.png` and a short table."""

import dataclasses
from typing import Any

from etils import epath

from elmo_jax.config import DIRECTIONS
from elmo_jax.files import absolute
from elmo_jax.model.bilm import parameter_count
from elmo_jax.runs.activity import PHASES
from elmo_jax.runs.perplexity import WHOLE, Evaluations, Perplexity
from elmo_jax.runs.result import plot, thousands
from elmo_jax.training.step import without_softmax

_COLOURS = {"forward": "tab:blue", "backward": "tab:orange"}


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The outcome of a training."""

    title: str  # the name of the run
    records: list[dict[str, Any]]  # those of its `metrics.jsonl`
    evaluations: Evaluations  # the perplexities that it has measured
    last_step: int  # the step after the last update
    total_steps: int  # the step at which training was requested to end
    exported_step: int  # the step of the parameters to export
    params: dict[str, Any]  # these parameters, with the softmax's rows in the order of the vocabulary
    precision: str  # of the matrix products
    tokens_per_step: int  # the number of tokens of all rows in one step
    first_step: int = 0  # the step before the first update

    def before(self, text: str) -> Perplexity | None:
        """Returns the perplexity of a text before training; that of the held-out text is of all of it if measured."""
        return self.after(text, self.first_step)

    def after(self, text: str, step: int | None = None) -> Perplexity | None:
        step = self.exported_step if step is None else step
        whole = self.evaluations.get((WHOLE, step)) if text == "heldout" else None
        return whole or self.evaluations.get((text, step))


def summary(result: TrainingResult) -> dict[str, Any]:
    """Returns the entries of `result.json` that all trainings of a biLM have."""
    before, after, params = result.before("heldout"), result.after("heldout"), result.params
    assert before and after  # which every training measures
    sources = {  # `before` may be of a part of the text, without any block of a small source
        name: {"before": first.as_dict() if (first := before.sources.get(name)) else None, "after": of_text.as_dict()}
        | {"tokens": of_text.tokens, "unknown": of_text.unknown}
        for name, of_text in after.sources.items()
    }
    return {
        "experiment": result.title,
        "steps": result.last_step,
        "tokens_seen": (result.last_step - result.first_step) * result.tokens_per_step,
        "precision": result.precision,
        "tokens_per_second": _speed([r for r in result.records if "train/seconds" in r]),
        "heldout_perplexity": after.as_dict(),
        "heldout_perplexity_before": before.as_dict(),
        "heldout_tokens": after.tokens,
        "heldout_unknown": after.unknown,
        **({"heldout_sources": sources} if sources else {}),
        "parameters": parameter_count(without_softmax(params)),
        "softmax_parameters": parameter_count(params["softmax"]),
        "vocabulary_size": params["softmax"]["bias"].shape[0],
    }


def _speed(reports: list[dict[str, Any]]) -> float:
    """Returns tokens per second without the first report, which includes the compilation; 0 if there are none."""
    if not reports:
        return 0.0
    first = reports[0] if len(reports) > 1 else {"tokens": 0, "train/seconds": 0.0}
    return (reports[-1]["tokens"] - first["tokens"]) / (reports[-1]["train/seconds"] - first["train/seconds"])


def draw_curve(
    workdir: epath.Path, records: list[dict[str, Any]], sampled: bool, result: TrainingResult | None = None
) -> None:
    """Draws `curve.png`: the training loss and the held-out perplexity over the tokens seen.

    Of the original text of a fine-tuning, it shows the average perplexities before training and of the exported step.
    """
    tokens = (result.exported_step - result.first_step) * result.tokens_per_step if result else 0
    others: dict[str, list[tuple[int, float]]] = {}
    if result and (before := result.before("original")) and (after := result.after("original")):
        others["original text, average"] = [(0, before.average), (tokens, after.average)]
    with plot(workdir / "curve.png", 9, 4.5) as figure:
        left, right = figure.subplots(1, 2)
        _lines(left, records, "train/loss")
        left.set_title("training loss" + (", sampled softmax" if sampled else ""))
        left.set_ylabel("nats per token")
        _lines(right, records, "heldout/perplexity", "o")
        for label, points in others.items():
            right.plot(*zip(*points, strict=True), color="tab:gray", label=label, marker="s", ms=4, lw=1.5, ls="--")
        right.set_title("held-out perplexity, full softmax")
        right.set_yscale("log")
        shown = [r[f"heldout/perplexity/{d}"] for r in records for d in DIRECTIONS if f"heldout/perplexity/{d}" in r]
        ticks = _ticks(shown + [value for points in others.values() for _, value in points])
        right.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
        right.minorticks_off()
        for axes in (left, right):
            axes.set_xlabel("tokens seen")
            axes.xaxis.set_major_formatter(lambda value, _: thousands(value))
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(frameon=False)
        figure.suptitle(absolute(workdir).name)


def _lines(axes: Any, records: list[dict[str, Any]], name: str, marker: str | None = None) -> None:
    for direction in DIRECTIONS:
        points = [(r["tokens"], r[f"{name}/{direction}"]) for r in records if f"{name}/{direction}" in r]
        if points:
            options = {"color": _COLOURS[direction], "label": direction, "marker": marker, "ms": 4, "lw": 1.5}
            axes.plot(*zip(*points, strict=True), **options)


def _ticks(values: list[float]) -> list[float]:
    """Returns those of the ticks 1, 2, 5, 10, … that enclose the values."""
    steps = [factor * 10.0**power for power in range(12) for factor in (1, 2, 5)]
    if not values:
        return []
    below = [step for step in steps if step <= min(values)][-1:]
    above = [step for step in steps if step >= max(values)][:1]
    return below + [step for step in steps if min(values) < step < max(values)] + above


def table(result: dict[str, Any], workdir: epath.Path) -> str:
    """Returns the report of a pretraining as text: perplexities, speed, files, and the next command."""
    before, after = result["heldout_perplexity_before"], result["heldout_perplexity"]
    rows = [f"{'held-out perplexity':<20} " + " ".join(f"{name:>12}" for name in after)]
    for name, values in (("before training", before), ("after training", after)):
        rows.append(f"{name:<20} " + " ".join(f"{values[key]:>12,.1f}" for key in after))
    rows += rows_of_sources(result)
    rows.append("(full softmax over the vocabulary; average: exp of the mean of both losses)")
    return "\n".join([*rows, "", *ending(result, workdir)])


def rows_of_sources(result: dict[str, Any]) -> list[str]:
    """Returns the lines of the report with the held-out perplexities of the named sources after training."""
    return [
        f"{f'  {name}':<20} " + " ".join(f"{value:>12,.1f}" for value in perplexity["after"].values())
        for name, perplexity in result.get("heldout_sources", {}).items()
    ]


def ending(result: dict[str, Any], workdir: epath.Path) -> list[str]:
    """Returns the last lines of the report, which are common to all trainings of a biLM."""
    minutes, seconds = divmod(round(result["wall_seconds"]), 60)
    shares = {name: result["seconds"][phase] / result["wall_seconds"] for phase, name in PHASES.items()}
    board = workdir / "tensorboard"
    products = f" with products in {result['precision']}" if "precision" in result else ""  # not in older runs
    times = ", ".join(f"{share:.0%} {name}" for name, share in shares.items() if share >= 0.005)
    return [
        f"{result['steps']:,} steps, {result['tokens_seen']:,} tokens in {minutes} min {seconds} s,"
        f" {result['tokens_per_second']:,.0f} tokens/s{products}; {result['parameters']:,} parameters, plus"
        f" {result['softmax_parameters']:,} in the softmax",
        f"the time: {times}",
        "",
        f"result       {workdir / 'result.json'}",
        f"curve        {workdir / 'curve.png'}",
        f"metrics      {workdir / 'metrics.jsonl'}" + (f", {board}" if board.exists() else ""),
        f"checkpoints  {workdir / 'checkpoints'}",
        f"the biLM     {workdir / 'export'}  (elmo_jax.load_bilm)",
        "",
        f"next: elmo-jax evaluate {workdir} --data YOUR_TEXT.txt",
    ]
