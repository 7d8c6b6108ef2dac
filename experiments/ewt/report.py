"""Makes the table and the picture of the taggers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ewt.recipe import VARIANTS, Result


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and the standard deviation over seeds; the deviation is that of a sample, 0 for one seed."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def table(results: Sequence[Result]) -> str:
    """Returns the table of the accuracies and the learned weights of the layers."""
    lines = [f"{'':<18} {'test accuracy':>15} {'dev accuracy':>15} {'errors':>8}"]
    errors: dict[str, float] = {}
    variants = [variant for variant in VARIANTS if any(result.variant == variant for result in results)]
    for variant in variants:
        test, dev = ([getattr(r, part) for r in results if r.variant == variant] for part in ("test", "dev"))
        errors[variant] = 100 - float(np.mean(test))
        cells = ["{:.2f} ± {:.2f}".format(*mean_and_deviation(values)) for values in (test, dev)]
        fewer = f"{100 * (errors[variant] / errors[variants[0]] - 1):+.0f}%"
        lines.append(f"{VARIANTS[variant]:<18} {cells[0]:>15} {cells[1]:>15} {fewer:>8}")
    seeds = len(results) // len(variants)
    lines += [
        f"(UPOS, percent; mean ± standard deviation of {seeds} seeds; epochs selected on dev; errors on test)",
        "",
    ]
    for variant in ("top", "all"):
        of_variant = [result for result in results if result.variant == variant]
        for number, place in enumerate(("input", "output")):
            gamma = np.mean([result.gammas[number] for result in of_variant])
            line = f"{VARIANTS[variant] + ', ' + place:<26} gamma {gamma:.2f}"
            if of_variant[0].weights:
                shares = np.mean([result.weights[number] for result in of_variant], axis=0)
                line += "  weights " + " ".join(f"{share:.2f}" for share in shares)
            lines.append(line)
    lines.append("(means over seeds; weights are softmaxed, layer 0 first, for the biLSTM's input and output)")
    return "\n".join(lines)


def draw(results: Sequence[Result], path: Path) -> None:
    """Draws the accuracies with one point per seed, and the learned weights of the layers."""
    # These draw without a screen.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    colours = ("tab:gray", "tab:orange", "tab:blue")
    for place, (variant, colour) in enumerate(zip(VARIANTS, colours, strict=True)):
        values = [result.test for result in results if result.variant == variant]
        if not values:
            continue
        left.plot([place] * len(values), values, "o", color=colour, alpha=0.5, ms=5)
        left.hlines(np.mean(values), place - 0.3, place + 0.3, color=colour, lw=2.5)
        left.annotate(f"{np.mean(values):.2f}", (place + 0.33, np.mean(values)), va="center")
    left.set_xticks(range(3), list(VARIANTS.values()))
    left.set_xlim(-0.5, 2.75)
    left.set_title("test accuracy, percent; one point per seed, the line is the mean")
    mixed = np.asarray([result.weights for result in results if result.variant == "all"])  # [seeds, 2, L+1]
    for number, (place, colour) in enumerate((("input", "tab:blue"), ("output", "tab:green"))):
        at = np.arange(mixed.shape[2]) + 0.38 * (number - 0.5)
        mean = mixed[:, number].mean(0)
        right.bar(at, mean, 0.36, color=colour, label=f"at the biLSTM's {place}")
        for x, value in zip(at, mean, strict=True):
            right.annotate(f"{value:.2f}", (x, value), ha="center", va="bottom")
    names = ["characters", *(f"LSTM {layer}" for layer in range(1, mixed.shape[2]))]
    right.set_xticks(range(mixed.shape[2]), names)
    right.set_title("weights of the biLM's layers, all mixed")
    right.margins(y=0.15)
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    temporary = path.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=120)
    temporary.replace(path)
