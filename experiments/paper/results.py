"""Helpers for the scripts of the paper's tables: opens biLMs, keeps finished results, and makes tables and a plot."""

import argparse
import contextlib
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from cove.vectors import CoVe, open_cove
from elmo_jax.checkpoints.open import BiLMSource
from elmo_jax.distributed.cpu import keep_freed_memory
from elmo_jax.embedding.bilm import EmbeddingBiLM, load_bilm
from elmo_jax.errors import UserError
from elmo_jax.files import listed, one_at_a_time, read_sealed_json, write_sealed_json
from elmo_jax.runs.result import plot

BILM_HELP = (
    "a run's folder, an export, OPTIONS.json,WEIGHTS.hdf5 for published weights, or the workdir of cove/train.py;"
    " several may be given"
)

Bars = Sequence[tuple[float, float, float]]  # the value of each layer and the ends of its error bar
Panels = dict[str, dict[str, Bars]]  # bars by title of a panel, then by name of a biLM or "paper"


class Model(NamedTuple):
    """A biLM, or the model that it is compared with, and its name in tables."""

    name: str
    bilm: EmbeddingBiLM | CoVe


def run_script(name: str, experiment: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> int:
    """Runs the script of a table and returns the exit status, which is as that of `elmo-jax`."""
    keep_freed_memory()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        experiment(options)
    except (UserError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return 0


def open_models(arguments: Sequence[str]) -> list[Model]:
    """Opens the biLMs that a user gives, among which may be a CoVe.

    The name of each is the last part of its path, or its whole path if two have the same last part.

    Raises:
      UserError: one of them is not a biLM, or one is given twice.
    """
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
    """Returns the name of a layer in tables, which is the paper's."""
    words = ("token", "first", "second", "third", "fourth")
    return f"{words[layer]} layer" if layer < len(words) else f"layer {layer}"


def digest(value: Any) -> str:
    """Returns a short digest of data that have an exact `repr`, such as tuples of strings."""
    return hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _writing(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Returns a context for reading and writing files of results that several processes share."""
    folder.mkdir(parents=True, exist_ok=True)
    return one_at_a_time(folder / ".lock")


def _read(path: Path) -> dict[str, Any]:
    """Returns the object in a file; an empty one if there is no file. Raises `UserError` if it is damaged."""
    try:
        return read_sealed_json(path, "delete it and run the experiment again")
    except FileNotFoundError:
        return {}


class Results:
    """A JSON file of the finished jobs of an experiment and their results."""

    def __init__(self, path: Path) -> None:
        """Reads the results of earlier processes. Raises `UserError` if the file is damaged."""
        self._path = path
        self._entries = self._read()

    def _read(self) -> list[dict[str, Any]]:
        found = _read(self._path)
        entries: list[dict[str, Any]] = found.get("entries", [])
        return entries

    def find(self, job: Mapping[str, Any]) -> Any | None:
        """Returns the result of a job; None if it is not finished."""
        return next((entry["result"] for entry in self._entries if entry["job"] == job), None)

    def get(self, job: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """Returns the result of a job, which is computed and kept if it is missing; both are JSON values."""
        found = self.find(job)
        if found is None:
            found = compute()
            with _writing(self._path.parent):
                self._entries = self._read()  # another process may have added some
                if self.find(job) is None:
                    self._entries.append({"job": dict(job), "result": found})
                    write_sealed_json(self._path, {"entries": self._entries})
        return found


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells as aligned text: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def draw_layers(out: Path, panels: Mapping[str, Mapping[str, Bars]]) -> Path:
    """Draws the score of each layer of each biLM with one panel per experiment.

    The panels that other experiments have drawn into the same folder are kept.

    Args:
      out: the folder of `layers.png` and of `layers.json`, which has its numbers.
      panels: the panels to add or to replace.

    Returns:
      The path of the plot.
    """
    numbers = out / "layers.json"
    with _writing(out):
        known: Panels = _read(numbers)
        known |= {title: {name: list(bars) for name, bars in lines.items()} for title, lines in panels.items()}
        write_sealed_json(numbers, known)
        path = out / "layers.png"
        with plot(epath.Path(path), 4.5 * len(known), 3.8) as figure:
            for axes, title in zip(figure.subplots(1, len(known), squeeze=False)[0], sorted(known), strict=True):
                _draw_panel(axes, title, known[title])
    return path


def _draw_panel(axes: Any, title: str, lines: Mapping[str, Bars]) -> None:
    most = max(map(len, lines.values()))
    for name, bars in lines.items():
        values = [value for value, _, _ in bars]
        errors = [[value - low for value, low, _ in bars], [high - value for value, _, high in bars]]
        places = range(most - len(bars), most)  # the paper has no score of its token layer
        style: dict[str, Any] = {"color": "black", "ls": ":"} if name == "paper" else {}
        axes.errorbar(places, values, errors, marker="o", ms=4, capsize=3, lw=1.5, label=name, **style)
    axes.set_xticks(range(most), [layer_name(layer) for layer in range(most)])
    axes.set(title=title, ylabel="percent")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def nearest_types(vectors: Mapping[str, np.ndarray], word: str, number: int) -> list[tuple[float, str]]:
    """Returns the nearest words of a word by the cosine of context-independent vectors, such as GloVe's.

    Args:
      vectors: the vectors by word.
      word: the word.
      number: the number of neighbours.

    Returns:
      The cosines and words, nearest first.

    Raises:
      UserError: the word has no vector.
    """
    if word not in vectors:
        raise UserError(f"the word {word!r} has no vector among the {len(vectors):,} word vectors that were read")
    words = [other for other in vectors if other != word]
    if not words:
        return []
    table = np.stack([vectors[other] for other in words])
    lengths = np.linalg.norm(table, axis=1) * np.linalg.norm(vectors[word])
    cosines = table @ vectors[word] / np.where(lengths > 0, lengths, 1)
    best = np.argsort(-cosines, kind="stable")[:number]
    return [(float(cosines[row]), words[row]) for row in best]
