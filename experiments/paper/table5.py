r"""Disambiguates word senses with the layers of a biLM: Table 5 of the paper (section 5.3).

    python experiments/paper/table5.py --bilm runs/english --semcor semcor3.0 --test WSD_Evaluation_Framework \
        --index WordNet-3.0/dict/index.sense --out runs/layers

The mean vector of each sense is computed over its tokens in SemCor. A test word takes the sense of its lemma and part
of speech with the nearest mean by cosine, or WordNet's first sense if SemCor has none of its senses. Several biLMs may
be given. Finished work is kept in --out: if the command is stopped, run it again to resume.

data      SemCor 3.0, from the page of Rada Mihalcea; the five all-words sets, from the page of the Unified Evaluation
          Framework of Raganato et al. (2017), whose version of SemCor is read too; index.sense, in the folder dict of
          WordNet 3.0, from Princeton
hardware  2 CPU cores
time      4 minutes per biLM of the packaged size, of which 163 s embed SemCor's 820,000 words (5,038 per second),
          next to another job
expected  a first-sense baseline of 65.9 on the pooled sets (66.8, 66.2, 63.0 and 67.8 on each), which does not
          depend on the biLM; the second layer above the first, and both above the token layer. docs/results.md has
          what was measured
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elmo_jax import UserError
from elmo_jax.files import digest_of
from results import Model, draw_layers, embed, kept, layer_name, open_models, run_script, script_parser, table
from senses import SenseCorpus, SenseIndex, Sentence, read_index, read_senses
from wsd import RESAMPLES, Score, class_means, first_senses, predict, right, score

POOLED = ("senseval2", "senseval3", "semeval2013", "semeval2015")
DEVELOPMENT = "semeval2007"
OTHERS = {
    "WordNet first sense": 65.9,
    "Raganato et al. (2017)": 69.9,
    "Iacobacci et al. (2016)": 70.1,
    "CoVe, first layer": 59.4,
    "CoVe, second layer": 64.7,
}
PAPER = {1: 67.4, 2: 69.0}  # F1 by layer of the biLM
QUICK_SENTENCES, QUICK_RESAMPLES = 300, 200

Tests = dict[str, list[Sentence]]


def read_tests(folder: Path) -> Tests:
    """Returns the test sets of the framework, each of which is in a folder of its name at any depth."""
    tests = {}
    for name in (*POOLED, DEVELOPMENT):
        paths = sorted(folder.rglob(f"{name}.data.xml*"))
        if not paths:
            raise UserError(f"{folder}: expected a folder with {name}/{name}.data.xml of the all-words framework")
        tests[name] = read_senses(paths[0]).sentences
    return tests


def pooled(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"pooled": np.concatenate([values[name] for name in POOLED]), **values}


def run(
    model: Model, semcor: SenseCorpus, tests: Tests, index: SenseIndex, folder: Path, resamples: int
) -> dict[str, Any]:
    """Returns the scores of a biLM's layers, [L+1] on each set, and the pooled gain of each layer over that below."""
    of_training = embed(folder, model.bilm, [sentence.words for sentence in semcor.sentences])
    means = class_means(of_training, semcor.sentences)
    values: list[dict[str, np.ndarray]] = [{} for _ in range(model.bilm.config.lstm.layers + 1)]
    unseen = 0
    for name, sentences in tests.items():
        vectors = embed(folder, model.bilm, [sentence.words for sentence in sentences])
        predictions, without = predict(index, means, vectors, sentences)
        unseen += without if name in POOLED else 0
        for layer, of_layer in zip(values, predictions, strict=True):
            layer[name] = right(of_layer, sentences).astype(np.int8)
    layers = [pooled(layer) for layer in values]
    pairs = zip(layers, layers[1:], strict=False)
    gains = [score(upper["pooled"] - lower["pooled"], resamples) for lower, upper in pairs]
    scores = {name: [score(layer[name], resamples) for layer in layers] for name in layers[0]}
    return {"scores": scores, "gains": gains, "unseen": unseen}


def shown(interval: Sequence[float], sign: str = "") -> str:
    """Returns a `Score` that was kept in JSON as text, such as `67.40 [66.28, 68.52]`."""
    value, low, high, _ = interval
    return f"{value:{sign}.2f} [{low:{sign}.2f}, {high:{sign}.2f}]"


def report(baseline: Mapping[str, Score], results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the paper's table with the measured scores next to the paper's, and then a table of each set."""
    most = max(len(result["scores"]["pooled"]) for result in results.values())
    first = shown(baseline["pooled"])
    rows = [["F1 in percent", "paper", *results]]
    rows += [
        [name, f"{value:.1f}", *(first if name == "WordNet first sense" else "" for _ in results)]
        for name, value in OTHERS.items()
    ]
    for layer in range(most):
        cells = [result["scores"]["pooled"][layer : layer + 1] for result in results.values()]
        paper = f"{PAPER[layer]:.1f}" if layer in PAPER else ""
        rows.append([f"biLM, {layer_name(layer)}", paper, *(shown(cell[0]) if cell else "" for cell in cells)])
    for layer in range(1, most):
        cells = [result["gains"][layer - 1 : layer] for result in results.values()]
        paper = f"{PAPER[layer] - PAPER[layer - 1]:+.1f}" if {layer, layer - 1} <= PAPER.keys() else ""
        gain = f"{layer_name(layer)} - {layer_name(layer - 1)}"
        rows.append([gain, paper, *(shown(cell[0], "+") if cell else "" for cell in cells)])
    apart = [["each set", *(f"{name} (n = {baseline[name].instances:,})" for name in (*POOLED, DEVELOPMENT))]]
    apart.append(["WordNet first sense", *(shown(baseline[name]) for name in (*POOLED, DEVELOPMENT))])
    for model, result in results.items():
        for layer in range(len(result["scores"]["pooled"])):
            cells = [shown(result["scores"][name][layer]) for name in (*POOLED, DEVELOPMENT)]
            apart.append([f"{model}, {layer_name(layer)}", *cells])
    instances = baseline["pooled"].instances
    unseen = " · ".join(f"{model} {result['unseen']:,}" for model, result in results.items())
    return (
        f"Table 5, word sense disambiguation: {', '.join(POOLED)} pooled, {instances:,} instances;"
        f" 95% intervals of a bootstrap over instances\n\n{table(rows)}\n\n{table(apart)}\n"
        f"({DEVELOPMENT} is the development set and not in the pool; first senses for lemmas without a mean: {unseen})"
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, f"read only the first {QUICK_SENTENCES} sentences of each text")
    parser.add_argument(
        "--semcor", type=Path, required=True, metavar="PATH", help="the folder of SemCor 3.0, or semcor.data.xml"
    )
    parser.add_argument("--test", type=Path, required=True, metavar="DIR", help="the folder of the all-words framework")
    parser.add_argument("--index", type=Path, required=True, metavar="FILE", help="index.sense of WordNet 3.0")
    return parser.parse_args(arguments)


def experiment(options: argparse.Namespace) -> None:
    models = open_models(options.bilm)
    index = read_index(options.index)
    semcor, tests, resamples = read_senses(options.semcor, index), read_tests(options.test), RESAMPLES
    if options.quick:
        semcor = semcor._replace(sentences=semcor.sentences[:QUICK_SENTENCES])
        tests = {name: sentences[:QUICK_SENTENCES] for name, sentences in tests.items()}
        resamples = QUICK_RESAMPLES
    if not semcor.instances:
        raise UserError(f"{options.semcor}: has no word with a sense of {options.index}")
    words = sum(len(sentence.words) for sentence in semcor.sentences)
    print(
        f"SemCor: {semcor.instances:,} instances, {words:,} words in {len(semcor.sentences):,} sentences;"
        f" {semcor.dropped:,} of {semcor.keys:,} sense keys ({semcor.dropped / semcor.keys:.1%}) are not in the index"
        " and were dropped",
        flush=True,
    )
    data = {"texts": digest_of(repr((semcor.sentences, tests))), "senses": len(index), "resamples": resamples}
    vectors = options.out / "vectors"
    measured = {}
    for model in models:
        job = {"bilm": model.bilm.vectors_fingerprint, **data}
        compute = functools.partial(run, model, semcor, tests, index, vectors, resamples)
        measured[model.name] = kept(options.out / "table5", job, compute)
    values = pooled({name: right(first_senses(index, sentences), sentences) for name, sentences in tests.items()})
    baseline = {name: score(of_set, resamples) for name, of_set in values.items()}
    print(f"\n{report(baseline, measured)}")
    lines = {name: [tuple(layer[:3]) for layer in result["scores"]["pooled"]] for name, result in measured.items()}
    paper = [(value, value, value) for value in PAPER.values()]
    numbers = {"WordNet first sense": baseline, **measured}
    draw_layers(options.out / "table5.png", {"word senses, F1 (Table 5)": {"paper": paper, **lines}}, numbers)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_script("table5", experiment, parse(arguments))


if __name__ == "__main__":
    sys.exit(main())
