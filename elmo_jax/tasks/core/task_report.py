"""Reports a finished task: a table, and a plot of its curves and of the weights of the biLM's layers."""

import statistics as stdlib_statistics
from collections.abc import Sequence
from typing import Any

from etils import epath

from elmo_jax.runs.metrics import read_records
from elmo_jax.runs.result import plot


def statistics(values: Sequence[float]) -> dict[str, float | int | None]:
    """Returns the `mean` of values, their number `n`, and the standard deviation `sd` of a sample, None for n = 1."""
    deviation = stdlib_statistics.stdev(values) if len(values) > 1 else None
    return {"mean": stdlib_statistics.fmean(values), "sd": deviation, "n": len(values)}


def shown(values: dict[str, Any]) -> str:
    """Returns the result of `statistics` as text, such as `93.40 ± 0.12 (n = 5)`."""
    deviation = "" if values["sd"] is None else f" ± {values['sd']:.2f}"
    return f"{values['mean']:.2f}{deviation} (n = {values['n']})"


def table(result: dict[str, Any], workdir: epath.Path) -> str:
    """Returns the table that is printed at the end of a task's run."""
    metric, seeds = result["metric"], result["seeds"]
    lines = [f"{result['task']}, {metric}"]
    lines += [f"{name:<5} {shown(result[name])}" for name in ("dev", "test") if name in result]
    if "ensemble" in result:
        together = " · ".join(f"{name} {values[metric]:.2f}" for name, values in result["ensemble"].items())
        lines.append(f"ensemble of the {len(seeds)} seeds (mean of probabilities): {together}")
    for seed in seeds:
        parts = [f"{name} {seed[name][metric]:.2f}" for name in ("dev", "test") if name in seed]
        lines.append(
            f"  seed {seed['seed']}: {' · '.join(parts)} · best epoch {seed['epoch']} of {seed['epochs']}"
            f" · {seed['words_per_second']:,.0f} words/s"
        )
    if result["word_vector_coverage"]:
        types, tokens = result["word_vector_coverage"]
        lines.append(f"pretrained word vectors: {types:.1%} of the training text's words, {tokens:.1%} of its tokens")
    for name in ("input", "output"):
        mixes = [seed["elmo"][name] for seed in seeds if name in seed["elmo"]]
        if mixes:
            lines.append(f"ELMo at the {name}: {_mean_mix(mixes)}")
    lines += [
        f"{result['parameters']:,} parameters without word vectors and the biLM",
        "",
        f"result       {workdir / 'result.json'}",
        f"plot         {workdir / 'curve.png'}",
        f"predictions  {workdir / 'seed_*' / '*.predictions'}",
        "",
        f"next: elmo-jax task predict {workdir} --input YOUR_TEXT.txt",
    ]
    return "\n".join(lines)


def _mean_mix(mixes: Sequence[dict[str, Any]]) -> str:
    scale = stdlib_statistics.fmean(mix["scale"] for mix in mixes)
    weights = [stdlib_statistics.fmean(values) for values in zip(*(mix["weights"] for mix in mixes), strict=True)]
    shares = " / ".join(f"{weight:.2f}" for weight in weights)
    return (f"weights of layers {shares}, " if shares else "") + f"scale {scale:.2f}"


def draw(workdir: epath.Path, title: str, result: dict[str, Any]) -> None:
    """Draws `curve.png`: the training loss, the dev metric and the weights of the biLM's layers."""
    seeds, measure = result["seeds"], result["metric"]
    mixes = [name for name in ("input", "output") if any(seed["elmo"].get(name, {}).get("weights") for seed in seeds)]
    with plot(workdir / "curve.png", 4.5 * (2 + len(mixes)), 4.0) as figure:
        loss, metric, *weights = figure.subplots(1, 2 + len(mixes))
        for name in (f"seed_{seed['seed']}" for seed in seeds):
            records = read_records(workdir / name / "metrics.jsonl")
            for axes, key in ((loss, "train/loss"), (metric, f"dev/{measure}")):
                points = [(record["step"], record[key]) for record in records if key in record]
                axes.plot(*zip(*points, strict=True) if points else ((), ()), label=name.replace("_", " "), lw=1.5)
        loss.set(title="training loss", xlabel="step")
        metric.set(title=f"{measure} on dev", xlabel="step")
        for axes, name in zip(weights, mixes, strict=True):
            layers = list(zip(*(seed["elmo"][name]["weights"] for seed in seeds), strict=True))
            summaries = [statistics(values) for values in layers]
            labels = ["characters", *(f"LSTM {j}" for j in range(1, len(layers)))]
            errors = [summary["sd"] or 0.0 for summary in summaries]
            axes.bar(labels, [summary["mean"] for summary in summaries], yerr=errors, color="tab:blue", capsize=3)
            axes.axhline(1 / len(layers), color="black", lw=0.8, ls=":")
            axes.set(title=f"weights of the layers, {name}", ylim=(0, None))
        for axes in (loss, metric, *weights):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.3)
        if len(seeds) > 1:
            loss.legend(frameon=False)
        figure.suptitle(title)
