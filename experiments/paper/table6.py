"""Predicts part-of-speech tags from the layers of a biLM: Table 6 of the paper (section 5.3).

    python experiments/paper/table6.py --bilm runs/english --ewt UD_English-EWT --out runs/layers
    python experiments/paper/table6.py --bilm runs/english --ptb treebank_3/tagged/pos/wsj --out runs/layers

The classifier is one linear layer and a softmax on the frozen vectors of one layer, without a mix or an RNN. It is
trained by Adam with five seeds, and the accuracy on dev selects the epoch. The paper has the Wall Street Journal part
of the Penn Treebank (sections 0-18, 19-21, 22-24); the English Web Treebank of Universal Dependencies has the same tags
in its column XPOS, and universal tags in UPOS. With --more there are also classifiers of all layers concatenated, of
all layers with a learned mix (equation 1), and of what the last LSTM layer adds to its input. Several biLMs may be
given. Finished work is kept in --out: if the command is stopped, run it again to resume.

data      UD English EWT, from the page of Universal Dependencies; the Penn Treebank, LDC99T42
hardware  2 CPU cores
time      1 minute to embed 248,593 words with the packaged biLM, and about a minute per row and column of tags,
          next to another job
expected  the first layer above the second, and both above the token layer; docs/results.md has what was measured

Shapes: N words, M layers that are mixed, F numbers per layer.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from elmo_jax import UserError
from elmo_jax.files import digest_of
from elmo_jax.tasks.core.run import shown, statistics
from elmo_jax.tasks.core.tagging import TaggedSentence
from elmo_jax.tasks.pos.task import read_conllu, read_penn
from probe import Recipe, Words, classes, train
from results import (
    Model,
    Results,
    Vectors,
    draw_layers,
    embed,
    layer_name,
    open_models,
    run_script,
    script_parser,
    table,
)

PARTS = ("train", "dev", "test")
SECTIONS = {"train": range(0, 19), "dev": range(19, 22), "test": range(22, 25)}
OTHERS = {
    "Collobert et al. (2011)": 97.3,
    "Ma and Hovy (2016)": 97.6,
    "Ling et al. (2015)": 97.8,
    "CoVe, first layer": 93.3,
    "CoVe, second layer": 92.8,
}
PAPER = {1: 97.3, 2: 96.8}  # accuracy by layer of the biLM
QUICK_SENTENCES, QUICK_SEEDS, QUICK_EPOCHS = 200, 2, 3


View = Callable[[np.ndarray], np.ndarray]  # selects the input of a classifier: [L+1, n, 2P] -> [n, M, F]
Trained = list[dict[str, float]]  # the accuracies on dev and on test and the epoch, for each seed


class Tagged(NamedTuple):
    """The sentences of a treebank for each of `PARTS`, with the tags of one column."""

    name: str
    parts: tuple[list[TaggedSentence], ...]

    def first(self, sentences: int) -> Tagged:
        return Tagged(self.name, tuple(part[:sentences] for part in self.parts))

    def words(self) -> list[list[tuple[str, ...]]]:
        return [[tuple(example.tokens) for example in part] for part in self.parts]

    def tags(self) -> list[list[str]]:
        return [[tag for example in part for tag in example.tags] for part in self.parts]


def read_ewt(folder: Path) -> list[Tagged]:
    """Reads both columns of tags of a folder of Universal Dependencies, whose files end in `train.conllu` and so on."""
    paths = []
    for part in PARTS:
        matches = sorted(folder.glob(f"*{part}.conllu*"))
        if len(matches) != 1:
            raise UserError(f"{folder}: expected one file *{part}.conllu, found {len(matches)}")
        paths.append(matches[0])
    return [
        Tagged(f"EWT {column.upper()}", tuple(read_conllu(path, column) for path in paths))
        for column in ("xpos", "upos")
    ]


def read_ptb(folder: Path) -> list[Tagged]:
    """Reads the sections 00 to 24 of the Wall Street Journal, each of which is a folder of `.pos` files."""
    parts = []
    for part, sections in SECTIONS.items():
        examples: list[TaggedSentence] = []
        for section in sections:
            paths = sorted((folder / f"{section:02}").glob("*.pos*"))
            if not paths:
                raise UserError(f"{folder / f'{section:02}'}: expected .pos files of section {section} ({part})")
            examples += [example for path in paths for example in read_penn(path)]
        parts.append(examples)
    return [Tagged("PTB", tuple(parts))]


def layer_view(layer: int) -> str:
    return f"biLM, {layer_name(layer)}"


def views(model: Model, more: bool) -> dict[str, View]:
    lstm = model.bilm.config.lstm
    views: dict[str, View] = {
        layer_view(layer): lambda layers, layer=layer: layers[layer][:, None] for layer in range(lstm.layers + 1)
    }
    if more:
        views["all layers, mixed"] = lambda layers: layers.swapaxes(0, 1)
        views["all layers, side by side"] = lambda layers: np.concatenate(list(layers), -1)[:, None]
        if lstm.skip_connections and lstm.layers > 1:
            views[f"{layer_name(lstm.layers)} without its input"] = lambda layers: (layers[-1] - layers[-2])[:, None]
    return views


class Seen:
    """The inputs of classifiers for the words of a treebank, which are read only if some work is not finished."""

    def __init__(self, model: Model, folder: Path, words: Sequence[Sequence[tuple[str, ...]]]) -> None:
        """Keeps the folder of the vectors and the sentences of each part."""
        self._model, self._folder, self._words = model, folder, words
        self._vectors: Vectors | None = None
        self._last: tuple[View | None, list[jax.Array]] = (None, [])

    def __call__(self, view: View) -> list[jax.Array]:
        """Returns the inputs [N, M, F] of each part; those of the last view are kept."""
        if self._vectors is None:
            sentences = [sentence for part in self._words for sentence in part]
            self._vectors = embed(self._folder, self._model.bilm, sentences)
        if self._last[0] is not view:
            self._last = (None, [])  # so that two views are not in memory at once
            self._last = (view, [self._input(self._vectors, view, part) for part in self._words])
        return self._last[1]

    def _input(self, vectors: Vectors, view: View, sentences: Sequence[tuple[str, ...]]) -> jax.Array:
        parts = [view(vectors.layers(vectors.stored[words])).astype(np.float16) for words in sentences if words]
        return jnp.asarray(np.concatenate(parts))


def run(
    model: Model, treebank: Sequence[Tagged], options: argparse.Namespace, recipe: Recipe, seeds: int, results: Results
) -> dict[str, dict[str, Trained]]:
    """Returns the results of each column of tags and each view; the columns share the treebank's words."""
    seen = Seen(model, options.out / "vectors", treebank[0].words())
    digests = {tagged.name: digest_of(repr(tagged.parts)) for tagged in treebank}
    trained: dict[str, dict[str, Trained]] = {tagged.name: {} for tagged in treebank}
    for name, view in views(model, options.more).items():
        for tagged in treebank:
            names, numbers = classes(tagged.tags())

            def one(seed: int, view: View = view, names: list[str] = names, numbers: Any = numbers) -> dict[str, Any]:
                parts = [Words(x, jnp.asarray(y)) for x, y in zip(seen(view), numbers, strict=True)]
                return train(parts, len(names), recipe, seed)._asdict()

            job = {"bilm": model.bilm.fingerprint, "data": digests[tagged.name], "recipe": list(recipe), "view": name}
            of_seeds = [results.get({**job, "seed": seed}, functools.partial(one, seed)) for seed in range(seeds)]
            trained[tagged.name][name] = of_seeds
            print(f"{model.name}, {tagged.name}: {name}: {shown(of(of_seeds, 'test'))}", flush=True)
    return trained


def of(trained: Trained, key: str) -> dict[str, Any]:
    return statistics([result[key] for result in trained])


def with_deviation(values: Sequence[float]) -> dict[str, Any]:
    """Returns the mean and the standard deviation, which is 0 for one seed."""
    moments = statistics(values)
    return moments | {"sd": moments["sd"] or 0.0}


def gain(of_model: Mapping[str, Trained], upper: int, lower: int, part: str) -> str:
    """Returns the gain of a layer over another one, seed by seed; empty for a biLM that does not have both."""
    views = [of_model.get(layer_view(layer)) for layer in (upper, lower)]
    if views[0] is None or views[1] is None:
        return ""
    pairs = zip(*views, strict=True)
    return "{mean:+.2f} ± {sd:.2f}".format(**with_deviation([x[part] - y[part] for x, y in pairs]))


def report(tagged: str, results: Mapping[str, Mapping[str, Trained]]) -> str:
    """Returns the paper's table with the measured accuracies; `found` has the seeds' results by model and view."""
    columns = [(model, part) for model in results for part in ("test", "dev")]
    rows = [["accuracy in percent", "paper (PTB)", *(f"{model}, {part}" for model, part in columns)]]
    rows += [[name, f"{value:.1f}", *("" for _ in columns)] for name, value in OTHERS.items()]
    paper = {layer_view(layer): f"{value:.1f}" for layer, value in PAPER.items()}
    for view in dict.fromkeys(view for of_model in results.values() for view in of_model):
        cells = [shown(of(results[m][view], part)) if view in results[m] else "" for m, part in columns]
        rows.append([view, paper.get(view, ""), *cells])
    for upper, lower, published in ((1, 2, f"{PAPER[1] - PAPER[2]:+.1f}"), (1, 0, ""), (2, 0, "")):
        cells = [gain(results[model], upper, lower, part) for model, part in columns]
        rows.append([f"{layer_name(upper)} - {layer_name(lower)}", published, *cells])
    return f"Table 6, part-of-speech tags of {tagged}; mean ± standard deviation over seeds\n\n{table(rows)}"


def bars(of_model: Mapping[str, Trained]) -> list[tuple[float, float, float]]:
    moments = [
        with_deviation([r["test"] for r in trained]) for view, trained in of_model.items() if view.startswith("biLM, ")
    ]
    return [(f["mean"], f["mean"] - f["sd"], f["mean"] + f["sd"]) for f in moments]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    quick = f"read only the first {QUICK_SENTENCES} sentences of each file, with {QUICK_SEEDS} seeds"
    parser = script_parser(__doc__, quick)
    parser.add_argument("--ewt", type=Path, metavar="DIR", help="the folder of UD English EWT")
    parser.add_argument("--ptb", type=Path, metavar="DIR", help="the folder wsj of the treebank's tagged files")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="(%(default)s)")
    parser.add_argument("--more", action="store_true", help="also train classifiers that read all layers")
    options = parser.parse_args(arguments)
    if options.ewt is None and options.ptb is None:
        parser.error("give --ewt or --ptb")
    if options.seeds < 1:
        parser.error("--seeds: expected at least 1")
    return options


def experiment(options: argparse.Namespace) -> None:
    models = open_models(options.bilm)
    treebanks = [read_ewt(options.ewt)] if options.ewt else []
    treebanks += [read_ptb(options.ptb)] if options.ptb else []
    recipe, seeds = Recipe(), options.seeds
    if options.quick:
        recipe, seeds = recipe._replace(epochs=QUICK_EPOCHS), QUICK_SEEDS
        treebanks = [[tagged.first(QUICK_SENTENCES) for tagged in treebank] for treebank in treebanks]
    results = Results(options.out / "table6")
    panels: dict[str, dict[str, Any]] = {}
    for treebank in treebanks:
        measured = {model.name: run(model, treebank, options, recipe, seeds, results) for model in models}
        for tagged in treebank:
            of_models = {model: of_model[tagged.name] for model, of_model in measured.items()}
            print(f"\n{report(tagged.name, of_models)}")
            paper = {"paper": [(value, value, value) for value in PAPER.values()]} if tagged.name == "PTB" else {}
            lines = {model: bars(of_model) for model, of_model in of_models.items()}
            panels[f"tags, {tagged.name}, accuracy (Table 6)"] = {**paper, **lines}
    draw_layers(options.out / "table6.png", panels)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_script("table6", experiment, parse(arguments))


if __name__ == "__main__":
    sys.exit(main())
