"""Trains part-of-speech taggers of the English Web Treebank (Universal Dependencies) without and with ELMo.

    git clone https://github.com/UniversalDependencies/UD_English-EWT
    python experiments/pos_ewt.py --bilm runs/fiction --data UD_English-EWT

(or `--data tfds:universal_dependencies/en_ewt`). The first tagger has word vectors and a small character CNN under a
biLSTM and a softmax. The others also have the top layer of a biLM, or all of its layers mixed, at the input and at the
output of the biLSTM. Each is trained with five seeds, which makes 15 trainings, and the accuracy on dev selects the
epoch. Finished trainings are kept: if the command is stopped, run it again to resume.

hardware  2 CPU cores
time      about 25 minutes: 70 s per training without ELMo, 100 s with it
result    94.68 / 95.55 / 95.57 percent of the UPOS tags on test without ELMo, with the top layer and with all layers; 5
seeds
          92.11 / 92.96 with the top layer and with all layers under `--elmo-alone`, which has no word vectors and no
          character CNN; 3 seeds
measured  the result, with the biLM of pretrain_fiction.py; layer norm was chosen on dev with two seeds
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import logging
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from ewt.arrays import Batch, batches, encode, make_batch
from ewt.model import Tagger, accuracy, make_tagger, train_step
from ewt.recipe import VARIANTS, Recipe, Result
from ewt.report import draw, table
from ewt.treebank import PARTS, read_treebank

import elmo_jax
from elmo_jax import UserError
from elmo_jax.files import write_text


def train(
    variant: str, seed: int, tagger: Tagger, optimizer: optax.GradientTransformation, data: dict[str, list[Batch]],
    bilm: elmo_jax.EmbeddingBiLM, folder: Path,
) -> Result:  # fmt: skip
    """Trains a tagger; the epoch with the best accuracy on dev is kept in `folder` as an Orbax checkpoint."""
    rows, random, key = tagger.recipe.batch_size, np.random.default_rng(seed), jax.random.key(seed)
    variables = tagger.init(
        key, make_batch(data["train"][:1], rows)
    )  # "params", and the fingerprint of the biLM without its parameters
    params, elmo = variables["params"], variables.get("elmo", {})
    state, step = optimizer.init(params), 0
    with best_checkpoint(folder) as manager:
        for epoch in range(1, tagger.recipe.epochs + 1):
            for batch in batches(data["train"], rows, random):
                params, state = train_step(tagger, optimizer, params, elmo, state, batch, jax.random.fold_in(key, step))
                step += 1
            variables = {"params": params, "elmo": elmo}
            dev = accuracy(tagger, variables, data["dev"])
            manager.save(epoch, args=ocp.args.StandardSave(variables), metrics={"dev": dev})
            manager.wait_until_finished()  # the next step donates the memory of the arrays
        best = manager.best_step()
        dev = manager.metrics(best)["dev"]
    variables = restore(folder, variables, bilm)
    mixes = [mix for _, mix in sorted(variables["params"].get("elmo", {}).items())]
    weights = [jax.nn.softmax(mix["weights"]).tolist() for mix in mixes if "weights" in mix]
    test = accuracy(tagger, variables, data["test"])
    return Result(variant, seed, best, dev, test, [float(mix["gamma"]) for mix in mixes], weights)


def best_checkpoint(folder: Path) -> ocp.CheckpointManager:
    """Returns a manager that keeps the checkpoint with the highest accuracy on dev."""
    options = ocp.CheckpointManagerOptions(max_to_keep=1, best_fn=lambda metrics: metrics["dev"], best_mode="max")
    return ocp.CheckpointManager(folder.absolute(), options=options)


def restore(folder: Path, like: Any, bilm: elmo_jax.EmbeddingBiLM) -> Any:
    """Returns the variables of the best epoch, shaped as `like`. Raises `UserError` if another biLM made them."""
    with best_checkpoint(folder) as manager:
        variables = manager.restore(manager.best_step(), args=ocp.args.StandardRestore(like))
    if variables["elmo"]:  # checks the fingerprint; the biLM is not needed, since its vectors are there
        elmo_jax.with_bilm(variables, bilm)
    return variables


def train_all(options: argparse.Namespace) -> list[Result]:
    """Trains all variants and seeds, except those that the workdir already has."""
    recipe = Recipe(epochs=options.epochs, own_words=not options.elmo_alone)
    sentences = read_treebank(options.data)
    bilm = elmo_jax.load_bilm(options.bilm)
    digest = hashlib.sha256(repr(sentences).encode()).hexdigest()
    claim(options.workdir, {"bilm": bilm.fingerprint, "treebank": digest, **dataclasses.asdict(recipe)})
    variants = [variant for variant in VARIANTS if recipe.own_words or variant != "without"]
    runs = [(variant, seed) for seed in range(options.seeds) for variant in variants]
    paths = {run: options.workdir / "{}_{}".format(*run) / "result.json" for run in runs}
    results = [Result(**json.loads(path.read_text())) for path in paths.values() if path.exists()]
    runs = [run for run in runs if not paths[run].exists()]
    if not runs:
        return results
    counts = Counter(word.lower() for sentence in sentences["train"] for word in sentence.words)
    seen_twice = sorted(word for word, count in counts.items() if count > 1)  # other words have the number 0
    vocabulary = {word: number for number, word in enumerate(seen_twice, 1)}
    print(f"running the biLM over {sum(counts.values()):,} words of train, and over dev and test", flush=True)
    data = {part: encode(sentences[part], vocabulary, recipe, bilm) for part in PARTS}
    updates = recipe.epochs * -(-len(data["train"]) // recipe.batch_size)
    rate = optax.warmup_cosine_decay_schedule(0.0, recipe.learning_rate, min(100, updates // 2), updates)
    optimizer = optax.chain(optax.clip_by_global_norm(recipe.clip_norm), optax.adam(rate))
    for number, (variant, seed) in enumerate(runs, 1):
        began, folder = time.monotonic(), paths[variant, seed].parent
        shutil.rmtree(folder, ignore_errors=True)  # removes what a stopped training has left
        tagger = make_tagger(variant, recipe, len(vocabulary) + 1, bilm)
        result = train(variant, seed, tagger, optimizer, data, bilm, folder / "checkpoints")
        write_text(paths[variant, seed], json.dumps(dataclasses.asdict(result), indent=2) + "\n")
        results.append(result)
        print(
            f"{number}/{len(runs)} {VARIANTS[variant]}, seed {seed}: best epoch {result.epoch}, dev {result.dev:.2f}, "
            f"test {result.test:.2f}; {time.monotonic() - began:.0f} s",
            flush=True,
        )
    return results


def claim(workdir: Path, settings: dict[str, Any]) -> None:
    """Makes the folder, or raises `UserError` if it has trainings with other settings."""
    path = workdir / "settings.json"
    if path.exists():
        found = json.loads(path.read_text())
        other = ", ".join(name for name in settings if found.get(name) != settings[name])
        if other:
            raise UserError(f"{workdir}: holds trainings with another {other}; give another --workdir, or remove it")
    elif workdir.exists() and any(workdir.iterdir()):
        raise UserError(f"{workdir}: holds something that is not a run of this experiment; give another --workdir")
    workdir.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(settings, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the experiment and returns the exit status, which is as that of `elmo-jax`."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--bilm", type=Path, required=True, metavar="RUN", help="the run or export of a biLM")
    parser.add_argument("--data", required=True, metavar="SOURCE", help="a folder of CoNLL-U files, or tfds:NAME")
    parser.add_argument(
        "--workdir",
        type=Path,
        default=Path("runs/pos_ewt"),
        metavar="DIR",
        help="folder of the results (default: %(default)s)",
    )
    parser.add_argument("--seeds", type=positive, default=5, metavar="N", help="number of seeds (default: %(default)s)")
    parser.add_argument("--elmo-alone", action="store_true", help="train without word vectors and character CNN")
    parser.add_argument(
        "--epochs", type=positive, default=Recipe.epochs, metavar="N", help="number of epochs (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        results = train_all(options)
    except UserError as error:
        print(f"pos_ewt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            f"pos_ewt: stopped; run the same command to resume, finished trainings are in {options.workdir}",
            file=sys.stderr,
        )
        return 130
    picture = options.workdir / "pos_ewt.png"
    draw(results, picture)
    print(f"\n{table(results)}\n\npicture  {picture}")
    return 0


def positive(text: str) -> int:
    """Returns a whole number of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main())
