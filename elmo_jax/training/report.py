"""What a finished run leaves to read: `result.json`, `curve.png` and a short table."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from elmo_jax.files import write_bytes, write_text
from elmo_jax.model.bilm import parameter_count
from elmo_jax.training.evaluate import FIGURES, Perplexity
from elmo_jax.training.state import without_softmax


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run that has come to its end, in this launch or an earlier one."""

    result: dict[str, Any]  # the contents of `result.json`
    already: bool  # whether this launch found it finished


def summary(records: list[dict[str, Any]], after: Perplexity, params: dict[str, Any]) -> dict[str, Any]:
    """The figures of a finished run, from its metrics and its last evaluation."""
    before = next(r for r in records if r["step"] == 0 and "heldout/perplexity/average" in r)
    return {
        "tokens_per_second": _speed([r for r in records if "train/seconds" in r]),
        "heldout_perplexity": after.as_dict(),
        "heldout_perplexity_before": {name: before[f"heldout/perplexity/{name}"] for name in after.as_dict()},
        "heldout_tokens": after.tokens,
        "heldout_unknown": after.unknown,
        "parameters": parameter_count(without_softmax(params)),
        "softmax_parameters": parameter_count(params["softmax"]),
        "vocabulary_size": params["softmax"]["bias"].shape[0],
    }


def _speed(trained: list[dict[str, Any]]) -> float:
    """Tokens a second over the reports, without the first, which has the compilation in it; 0 for a run of no steps."""
    if not trained:
        return 0.0
    first = trained[0] if len(trained) > 1 else {"tokens": 0, "train/seconds": 0.0}
    return (trained[-1]["tokens"] - first["tokens"]) / (trained[-1]["train/seconds"] - first["train/seconds"])


def write_result(workdir: epath.Path, result: dict[str, Any]) -> None:
    """`result.json`, all or nothing."""
    write_text(workdir / "result.json", json.dumps(result, indent=2) + "\n")


def draw_curve(
    workdir: epath.Path,
    records: list[dict[str, Any]],
    title: str,
    sampled: bool,
    others: Mapping[str, Sequence[tuple[int, float]]] | None = None,
) -> None:
    """`curve.png`: the training loss and the held-out loss over the tokens seen.

    Args:
      workdir: the run's folder.
      records: of `metrics.jsonl`.
      title: of the picture.
      sampled: whether the training loss is that of the sampled softmax, which is not on the scale of the held-out one.
      others: label -> (tokens seen, perplexity) of other texts.
    """
    # drawn without a screen; imported here, since only a finished run draws
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _lines(left, records, "train/loss", "sampled softmax" if sampled else "full softmax")
    left.set_title("training loss" + (", sampled softmax" if sampled else ""))
    left.set_ylabel("nats a token")
    _lines(right, records, "heldout/perplexity", "o")
    for label, points in (others or {}).items():
        right.plot(*zip(*points, strict=True), color="tab:gray", label=label, marker="s", ms=4, lw=1.5, ls="--")
    right.set_title("held-out perplexity, full softmax")
    right.set_yscale("log")
    shown = [r[f"heldout/perplexity/{d}"] for r in records for d in _DIRECTIONS if f"heldout/perplexity/{d}" in r]
    ticks = _ticks(shown + [value for points in (others or {}).values() for _, value in points])
    right.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
    right.minorticks_off()
    for axes in (left, right):
        axes.set_xlabel("tokens seen")
        axes.xaxis.set_major_formatter(lambda value, _: _thousands(value))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
    figure.suptitle(title)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_bytes(workdir / "curve.png", picture.getvalue())


_DIRECTIONS = ("forward", "backward")
_COLOURS = {"forward": "tab:blue", "backward": "tab:orange"}


def _lines(axes: Any, records: list[dict[str, Any]], name: str, style: str) -> None:
    for direction in _DIRECTIONS:
        points = [(r["tokens"], r[f"{name}/{direction}"]) for r in records if f"{name}/{direction}" in r]
        if points:
            marker = "o" if style == "o" else None
            axes.plot(
                *zip(*points, strict=True), color=_COLOURS[direction], label=direction, marker=marker, ms=4, lw=1.5
            )


def _ticks(values: list[float]) -> list[float]:
    """1, 2, 5, 10, … around the values."""
    steps = [factor * 10.0**power for power in range(12) for factor in (1, 2, 5)]
    if not values:
        return []
    below = [step for step in steps if step <= min(values)][-1:]
    above = [step for step in steps if step >= max(values)][:1]
    return below + [step for step in steps if min(values) < step < max(values)] + above


def _thousands(value: float) -> str:
    for unit, name in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def table(result: dict[str, Any], workdir: epath.Path) -> str:
    """The end of a run for a person: what was gained, how fast, where things are, what to do next."""
    before, after = result["heldout_perplexity_before"], result["heldout_perplexity"]
    rows = [f"{'held-out perplexity':<20} {'forward':>12} {'backward':>12} {'average':>12}"]
    for name, values in (("before training", before), ("after training", after)):
        rows.append(f"{name:<20} " + " ".join(f"{values[key]:>12,.1f}" for key in FIGURES))
    rows.append("(full softmax over the vocabulary; average: exp of the mean of both losses)")
    return "\n".join([*rows, "", *ending(result, workdir)])


def ending(result: dict[str, Any], workdir: epath.Path) -> list[str]:
    """The lines that end the report of any run."""
    minutes, seconds = divmod(round(result["wall_seconds"]), 60)
    return [
        f"{result['steps']:,} steps, {result['tokens_seen']:,} tokens in {minutes} min {seconds} s,"
        f" {result['tokens_per_second']:,.0f} tokens/s; {result['parameters']:,} parameters and"
        f" {result['softmax_parameters']:,} of the softmax",
        "",
        f"result       {workdir / 'result.json'}",
        f"curve        {workdir / 'curve.png'}",
        f"metrics      {workdir / 'metrics.jsonl'}, {workdir / 'tensorboard'}",
        f"checkpoints  {workdir / 'checkpoints'}",
        f"the biLM     {workdir / 'export'}  (elmo_jax.load_bilm)",
        "",
        f"next: elmo-jax evaluate {workdir} --data YOUR_TEXT.txt",
    ]
