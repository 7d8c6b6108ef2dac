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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from elmo_jax import UserError
from elmo_jax.files import digest_of
from elmo_jax.tasks.core.run import shown, statistics
from elmo_jax.tasks.core.tagging import TaggedSentence
from elmo_jax.tasks.pos.task import read_conllu, read_penn
from probe import Recipe, Words, classes, train
from results import Model, Vectors, draw_layers, embed, kept, layer_name, open_models, run_script, script_parser, table

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


# The sentences of each of `PARTS`, by the name of their column of tags; the columns share the words.
Treebank = dict[str, list[list[TaggedSentence]]]


def read_ewt(folder: Path) -> Treebank:
    """Reads both columns of tags of a folder of Universal Dependencies, whose files end in `train.conllu` and so on."""
    paths = []
    for part in PARTS:
        matches = sorted(folder.glob(f"*{part}.conllu*"))
        if len(matches) != 1:
            raise UserError(f"{folder}: expected one file *{part}.conllu, found {len(matches)}")
        paths.append(matches[0])
    return {f"EWT {column.upper()}": [read_conllu(path, column) for path in paths] for column in ("xpos", "upos")}


def read_ptb(folder: Path) -> Treebank:
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
    return {"PTB": parts}


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


def run(
    model: Model, treebank: Treebank, options: argparse.Namespace, recipe: Recipe, seeds: int
) -> dict[str, dict[str, Trained]]:
    """Returns the results of each column of tags and each view."""
    words = [[tuple(example.tokens) for example in part] for part in next(iter(treebank.values()))]
    trained: dict[str, dict[str, Trained]] = {column: {} for column in treebank}
    folder = options.out / "table6"

    @functools.cache  # the vectors are read only if some work is not finished
    def vectors() -> Vectors:
        return embed(options.out / "vectors", model.bilm, [sentence for part in words for sentence in part])

    def inputs_of(view: View) -> list[jax.Array]:
        def of_sentence(sentence: tuple[str, ...]) -> np.ndarray:
            return view(vectors().layers(vectors().stored[sentence])).astype(np.float16)

        return [jnp.asarray(np.concatenate([of_sentence(s) for s in part if s])) for part in words]

    for name, view in views(model, options.more).items():
        inputs = functools.cache(functools.partial(inputs_of, view))  # [N, M, F] of each part
        for column, parts in treebank.items():
            names, numbers = classes([[tag for example in part for tag in example.tags] for part in parts])

            def one(seed: int, inputs: Any = inputs, names: list[str] = names, numbers: Any = numbers) -> Any:
                parts = [Words(x, jnp.asarray(y)) for x, y in zip(inputs(), numbers, strict=True)]
                return train(parts, len(names), recipe, seed)._asdict()

            data = digest_of(repr(parts))
            job = {"bilm": model.bilm.vectors_fingerprint, "data": data, "recipe": list(recipe), "view": name}
            of_seeds = [kept(folder, {**job, "seed": seed}, functools.partial(one, seed)) for seed in range(seeds)]
            trained[column][name] = of_seeds
            print(f"{model.name}, {column}: {name}: {shown(of(of_seeds, 'test'))}", flush=True)
    return trained


def of(trained: Trained, key: str) -> dict[str, Any]:
    return statistics([result[key] for result in trained])


def gain(of_model: Mapping[str, Trained], upper: int, lower: int, part: str) -> str:
    """Returns the gain of a layer over another one, seed by seed; empty for a biLM that does not have both."""
    views = [of_model.get(layer_view(layer)) for layer in (upper, lower)]
    if views[0] is None or views[1] is None:
        return ""
    pairs = zip(*views, strict=True)
    return "{mean:+.2f} ± {sd:.2f}".format(**statistics([x[part] - y[part] for x, y in pairs]))


def report(tagged: str, results: Mapping[str, Mapping[str, Trained]]) -> str:
    """Returns the paper's table with the measured accuracies."""
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
    moments = [of(trained, "test") for view, trained in of_model.items() if view.startswith("biLM, ")]
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
    if options.seeds < 2:
        parser.error("--seeds: expected at least 2, for a standard deviation")
    return options


def experiment(options: argparse.Namespace) -> None:
    models = open_models(options.bilm)
    treebanks = [read_ewt(options.ewt)] if options.ewt else []
    treebanks += [read_ptb(options.ptb)] if options.ptb else []
    recipe, seeds = Recipe(), options.seeds
    if options.quick:
        recipe, seeds = recipe._replace(epochs=QUICK_EPOCHS), QUICK_SEEDS
        treebanks = [
            {column: [part[:QUICK_SENTENCES] for part in parts] for column, parts in treebank.items()}
            for treebank in treebanks
        ]
    panels: dict[str, dict[str, Any]] = {}
    trained = [{model.name: run(model, data, options, recipe, seeds) for model in models} for data in treebanks]
    for treebank, measured in zip(treebanks, trained, strict=True):
        for column in treebank:
            of_models = {model: of_model[column] for model, of_model in measured.items()}
            print(f"\n{report(column, of_models)}")
            paper = {"paper": [(value, value, value) for value in PAPER.values()]} if column == "PTB" else {}
            lines = {model: bars(of_model) for model, of_model in of_models.items()}
            panels[f"tags, {column}, accuracy (Table 6)"] = {**paper, **lines}
    draw_layers(options.out / "table6.png", panels, trained)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_script("table6", experiment, parse(arguments))


if __name__ == "__main__":
    sys.exit(main())
