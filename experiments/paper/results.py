"""Helpers for the scripts of the paper's tables: opens biLMs, keeps finished results, and makes tables and a plot."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from cove.vectors import CoVe, open_cove
from elmo_jax.checkpoints.open import BiLMSource
from elmo_jax.config import ModelConfig
from elmo_jax.distributed.cpu import keep_freed_memory
from elmo_jax.embedding.bilm import EmbeddingBiLM, load_bilm
from elmo_jax.errors import UserError
from elmo_jax.files import digest_of, listed, read_checksummed_json, write_checksummed_json, write_json
from elmo_jax.runs.result import plot
from elmo_jax.tasks.core.elmo_vectors import LayerCache, make, unpack_layers

Bars = Sequence[tuple[float, float, float]]  # the value of each layer and the ends of its error bar


class Model(NamedTuple):
    name: str
    bilm: EmbeddingBiLM | CoVe


class Vectors(NamedTuple):
    stored: Mapping[tuple[str, ...], np.ndarray] | LayerCache  # the numbers of each sentence, float16 [T, S]
    config: ModelConfig  # of the biLM

    def layers(self, stored: np.ndarray) -> np.ndarray:
        return unpack_layers(stored[None], self.config, np)[0]


def embed(folder: Path, bilm: Any, sentences: Sequence[tuple[str, ...]]) -> Vectors:
    return Vectors(LayerCache(make(folder, bilm, sentences, "float16").files), bilm.config)


def script_parser(description: str, quick: str) -> argparse.ArgumentParser:
    """Returns a parser with the options that the scripts of the tables share; `quick` is the help of --quick."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0], allow_abbrev=False)
    parser.add_argument(
        "--bilm",
        nargs="+",
        required=True,
        metavar="BILM",
        help="a run's folder, an export, OPTIONS.json,WEIGHTS.hdf5 for published weights, or the workdir of"
        " cove/train.py; several may be given",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/layers"), metavar="DIR", help="(%(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"{quick}, as a trial run")
    return parser


def run_script(name: str, experiment: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> int:
    keep_freed_memory()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        experiment(options)
    except (UserError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return 0


def open_models(arguments: Sequence[str]) -> list[Model]:
    """Opens the biLMs that a user gives, or a CoVe, named by the last parts of their paths, or the paths if equal."""
    names = [_name(argument) for argument in arguments]
    unique = [name if names.count(name) == 1 else argument for name, argument in zip(names, arguments, strict=True)]
    for name in unique:
        if unique.count(name) > 1:
            raise UserError(f"the biLM {name} is given {unique.count(name)} times; give each once")
    models = [open_cove(argument) or load_bilm(_source(argument)) for argument in arguments]
    return [Model(name, model) for name, model in zip(unique, models, strict=True)]


def _source(argument: str) -> BiLMSource:
    paths = listed(argument)
    return (paths[0], paths[1]) if len(paths) == 2 and paths[0].endswith(".json") else argument


def _name(argument: str) -> str:
    path = Path(listed(argument)[-1])
    inside = path.name == "export" and path.parent.name  # the export of a run has the name of the run
    return path.parent.name if inside else path.name.removesuffix(".hdf5") or argument


def layer_name(layer: int) -> str:
    words = ("token", "first", "second", "third", "fourth")
    return f"{words[layer]} layer" if layer < len(words) else f"layer {layer}"


def kept(folder: Path, job: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
    """Returns the result of a job, which is computed and kept in a folder if it is missing; both are JSON values."""
    path = folder / f"{digest_of(job)[:16]}.json"
    try:
        return read_checksummed_json(path, "delete it and run the experiment again")["result"]
    except FileNotFoundError:
        result = compute()
    folder.mkdir(parents=True, exist_ok=True)
    write_checksummed_json(path, {"job": dict(job), "result": result})
    return result


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells as aligned text: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def draw_layers(path: Path, panels: Mapping[str, Mapping[str, Bars]], numbers: Any) -> None:
    """Draws the score of each layer, in a panel per experiment by its title, and writes all numbers next to it."""
    write_json(path.with_suffix(".json"), numbers)
    with plot(epath.Path(path), 4.5 * len(panels), 3.8) as figure:
        for axes, title in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw_panel(axes, title, panels[title])
    print(f"\nplot  {path}\ndata  {path.with_suffix('.json')}")


def _draw_panel(axes: Any, title: str, lines: Mapping[str, Bars]) -> None:
    most = max(map(len, lines.values()))
    for name, bars in lines.items():
        values = [value for value, _, _ in bars]
        errors = [[value - low for value, low, _ in bars], [high - value for value, _, high in bars]]
        positions = range(most - len(bars), most)  # the paper has no score of its token layer
        style: dict[str, Any] = {"color": "black", "ls": ":"} if name == "paper" else {}
        axes.errorbar(positions, values, errors, marker="o", ms=4, capsize=3, lw=1.5, label=name, **style)
    axes.set_xticks(range(most), [layer_name(layer) for layer in range(most)])
    axes.set(title=title, ylabel="percent")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
