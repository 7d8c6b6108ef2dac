"""Draws Figures 1 and 2 of the paper; lines and hatches can be told apart without color."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from claims import weights_of
from elmo_jax.runs.result import plot

Found = Mapping[str, Mapping[str, Mapping[str, Any]]]  # the numbers of `gains.json` by task, and by row as in `grid.py`

STYLES: dict[str, dict[str, Any]] = {
    "baseline": {"color": "0.45", "ls": "--", "marker": "s"},
    "ELMo": {"color": "black", "ls": "-", "marker": "o"},
}


def draw_shares(path: Path, found: Found) -> None:
    """Draws Figure 1: the dev score with and without ELMo over the percentage of the training examples."""
    with plot(path, 4.5 * len(found), 3.8) as figure:
        for axes, (task, rows) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
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


def draw_weights(path: Path, found: Found) -> None:
    """Draws Figure 2: the weight of each layer in the mixes of each task, below 1/3 hatched and above 2/3 speckled."""
    with plot(path, 9.0, 1.2 + 0.5 * len(found)) as figure:
        for axes, place in zip(figure.subplots(1, 2), ("input", "output"), strict=True):
            layers = 0
            for number, rows in enumerate(found.values()):
                mixes = weights_of(rows, place)
                for layer, weight in enumerate(np.mean(mixes, axis=0) if mixes else ()):
                    hatch = "---" if weight < 1 / 3 else ".." if weight > 2 / 3 else ""
                    style = {"facecolor": str(1 - 0.5 * weight), "edgecolor": "0.35"}
                    axes.barh(number, 1, 1, layer - 0.5, hatch=hatch, lw=0.5, **style)
                    box = style | {"edgecolor": "none", "pad": 1.5}  # keeps the hatches off the number
                    axes.text(layer, number, f"{weight:.2f}", ha="center", va="center", bbox=box)
                    layers = max(layers, layer + 1)
            axes.set_xticks(range(layers), ["token", *(f"LSTM {layer}" for layer in range(1, layers))][:layers])
            axes.set_yticks(range(len(found)), found)
            axes.set(title=place, xlim=(-0.5, max(layers, 1) - 0.5), ylim=(len(found) - 0.5, -0.5))
            axes.tick_params(length=0)
