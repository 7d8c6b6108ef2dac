"""Part-of-speech tagging of the English Web Treebank (Universal Dependencies), without ELMo and with it.

    git clone https://github.com/UniversalDependencies/UD_English-EWT
    python experiments/pos_ewt.py --bilm runs/fiction --data UD_English-EWT

(or `--data tfds:universal_dependencies/en_ewt`). Word vectors and a small char CNN under a biLSTM and a softmax; the
same with the top layer of a biLM, and with all of its layers mixed, at the input and at the output of the biLSTM. Five
seeds each, 15 trainings; the epoch is chosen by the accuracy on dev. A run that was stopped goes on: finished
trainings are kept.

hardware  2 CPU cores
time      about 25 minutes: 70 s a training without ELMo, 100 s with it
figure    94.68 / 95.55 / 95.57 percent of UPOS on test: without, top layer, all layers; 5 seeds
          92.11 / 92.96 with `--elmo-alone`, no word vectors and no char CNN: top layer, all layers; 3 seeds
measured  the figures, with the biLM of pretrain_fiction.py; layer norm was chosen on dev, from two seeds

Shapes: B sentences of a batch, T words of the longest, W characters of a word, K tags, L LSTM layers of the biLM,
P its projection.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import json
import logging
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

import elmo_jax
from elmo_jax import UserError
from elmo_jax.data.prepare.tfds_text import prepared_builder, quiet_tfds, read_split
from elmo_jax.files import write_text

TAGS = tuple("ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X".split())  # UPOS
VARIANTS = {"without": "without ELMo", "top": "top layer only", "all": "all layers mixed"}
PARTS = ("train", "dev", "test")

WIDTHS = (8, 16, 24, 40, 80)  # T is the next of these, or of their doubles: few programs to compile


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One for all three variants."""

    epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 3e-3  # Adam; 100 steps of warm-up, cosine to 0
    clip_norm: float = 5.0
    hidden: int = 100  # of each direction of the biLSTM
    word_features: int = 100
    character_features: int = 64
    characters: int = 20  # W: a word's first bytes, its marks among them
    dropout: float = 0.5
    regularization: float = 1e-3  # of the mix's weights
    layer_norm: str = "without_marks"  # of the layers that are mixed; the top layer alone has none
    own_words: bool = True  # word vectors and a char CNN beside ELMo


# ---- the treebank


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Words and the numbers of their tags in `TAGS`."""

    words: list[str]
    tags: list[int]


def read_treebank(source: str) -> dict[str, list[Sentence]]:
    """Train, dev and test, from `tfds:NAME` or a folder of CoNLL-U files."""
    parts = {}
    for part in PARTS:
        if source.startswith("tfds:"):
            parts[part] = list(read_tfds(source, part))
        else:
            parts[part] = list(read_conllu(Path(source) / f"en_ewt-ud-{part}.conllu"))
        if not parts[part]:
            raise UserError(f"{source}: {part} holds no sentences")
    return parts


def read_conllu(path: Path) -> Iterator[Sentence]:
    """The syntactic words of a file. Raises `UserError` with the line that is not CoNLL-U."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected en_ewt-ud-{{train,dev,test}}.conllu of UD English EWT")
    words: list[str] = []
    tags: list[int] = []
    for number, raw in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            line = raw.decode().rstrip("\r")
        except UnicodeDecodeError:
            raise UserError(f"{path}, line {number}: not UTF-8") from None
        if not line.strip():
            if words:
                yield Sentence(words, tags)
            words, tags = [], []
        elif not line.startswith("#"):
            columns = line.split("\t")
            if len(columns) != 10:
                raise UserError(f"{path}, line {number}: expected 10 columns with tabs between, found {len(columns)}")
            if re.fullmatch(r"\d+-\d+|\d+\.\d+", columns[0]):
                continue  # "don't", whose words "do" and "n't" follow; a word that is not in the text
            if columns[0] != str(len(words) + 1):
                raise UserError(f"{path}, line {number}: expected word {len(words) + 1}, found {columns[0]!r}")
            if not columns[1] or columns[3] not in TAGS:
                found = f"{columns[1]!r} and {columns[3]!r}"
                raise UserError(f"{path}, line {number}: expected a word and its UPOS tag, found {found}")
            words.append(columns[1])
            tags.append(TAGS.index(columns[3]))
    if words:
        yield Sentence(words, tags)


def read_tfds(name: str, part: str) -> Iterator[Sentence]:
    """The same from TFDS, which keeps the lines of `read_conllu` that are no words; they have no head."""
    with quiet_tfds():
        builder = prepared_builder(name, name.removeprefix("tfds:"))
        if not {"tokens", "upos", "head"} <= set(builder.info.features):
            raise UserError(f"{name}: expected a treebank, with the features tokens, upos and head")
        names = builder.info.features["upos"].feature.names
        for example in read_split(name, builder, part):
            rows = zip(example["tokens"], example["upos"], example["head"], strict=True)
            found = [(word.decode(), names[tag]) for word, tag, head in rows if head != b"None"]
            if found:
                yield Sentence([word for word, _ in found], [TAGS.index(tag) for _, tag in found])


# ---- sentences as arrays


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """words, tags [B, T]; characters [B, T, W]; layers [B, T, L+1, 2P]; mask [B, T], true on words."""

    words: Any
    tags: Any
    characters: Any
    layers: Any
    mask: Any


def encode(
    sentences: Sequence[Sentence], vocabulary: dict[str, int], recipe: Recipe, bilm: elmo_jax.EmbeddingBiLM
) -> list[Batch]:
    """Each sentence by itself, its arrays without B. The biLM is frozen: a sentence goes through it once for all."""
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i].words))  # rows of like length side by side
    encoded: dict[int, Batch] = {}
    for start in range(0, len(order), 128):
        numbers = order[start : start + 128]
        layers, _, _ = bilm.embed([sentences[i].words for i in numbers])  # [B, L+1, T, 2P]
        for i, vectors in zip(numbers, layers, strict=True):
            words = sentences[i].words
            encoded[i] = Batch(
                np.asarray([vocabulary.get(word.lower(), 0) for word in words], np.int32),
                np.asarray(sentences[i].tags, np.int32),
                elmo_jax.character_ids([words], recipe.characters)[0],
                vectors[:, : len(words)].swapaxes(0, 1).copy(),
                np.ones(len(words), bool),
            )
    return [encoded[i] for i in range(len(sentences))]


def make_batch(sentences: Sequence[Batch], rows: int) -> Batch:
    """Fills up with zeros: rows where there are fewer sentences, and steps."""
    longest = max(len(sentence.words) for sentence in sentences)
    steps = next(width << power for power in range(32) for width in WIDTHS if width << power >= longest)

    def stack(*arrays: np.ndarray) -> np.ndarray:
        filled = np.zeros((rows, steps, *arrays[0].shape[1:]), arrays[0].dtype)
        for row, array in enumerate(arrays):
            filled[row, : len(array)] = array
        return filled

    return jax.tree.map(stack, *sentences)


def batches(sentences: Sequence[Batch], rows: int, random: np.random.Generator | None = None) -> Iterator[Batch]:
    """Batches of sentences of like length; drawn anew at each call where `random` is given."""
    lengths = np.asarray([len(sentence.words) for sentence in sentences], np.float64)
    order = np.argsort(lengths + (random.uniform(0, 3, len(lengths)) if random else 0), kind="stable")
    starts = np.arange(0, len(order), rows)
    for start in random.permutation(starts) if random else starts:
        yield make_batch([sentences[i] for i in order[start : start + rows]], rows)


# ---- the model


class Tagger(nn.Module):
    """Word vectors and a char CNN under a biLSTM; with ELMo also at the biLSTM's input and output (section 3.3)."""

    recipe: Recipe
    vocabulary_size: int
    elmo: elmo_jax.ELMo | None = None

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> tuple[jax.Array, jax.Array]:
        """Logits [B, T, K], and the penalty of ELMo's weights."""
        recipe = self.recipe
        drop = nn.Dropout(recipe.dropout, deterministic=not train)
        inputs: list[jax.Array] = []
        mixes: Sequence[jax.Array] = []
        penalty = jnp.zeros(())
        if recipe.own_words:
            characters = nn.Embed(262, 16, name="characters")(batch.characters)  # [B, T, W, 16]
            spelling = nn.relu(nn.Conv(recipe.character_features, (3,), name="char_cnn")(characters).max(-2))
            known = nn.Embed(self.vocabulary_size, recipe.word_features, name="words")(batch.words)
            inputs = [drop(jnp.concatenate([known, spelling], -1))]
        if self.elmo:
            layers = batch.layers.swapaxes(1, 2)  # [B, L+1, T, 2P], as `embed` gives them
            mixes, _, penalty = self.elmo.mix(layers, batch.mask, deterministic=not train)
        forward, backward = (nn.RNN(nn.OptimizedLSTMCell(recipe.hidden)) for _ in range(2))
        hidden = nn.Bidirectional(forward, backward)(
            jnp.concatenate([*inputs, *mixes[:1]], -1), seq_lengths=batch.mask.sum(-1)
        )  # [B, T, 2 * hidden]
        return nn.Dense(len(TAGS), name="tags")(jnp.concatenate([drop(hidden), *mixes[1:]], -1)), penalty


def make_tagger(variant: str, recipe: Recipe, vocabulary_size: int, bilm: elmo_jax.EmbeddingBiLM) -> Tagger:
    """One of the `VARIANTS`."""
    if variant == "without":
        return Tagger(recipe, vocabulary_size)
    layers = elmo_jax.Layers.TOP if variant == "top" else elmo_jax.Layers.ALL
    elmo = bilm.elmo(
        num_mixes=2,
        layers=layers,
        layer_norm=elmo_jax.LayerNorm(recipe.layer_norm),
        dropout=recipe.dropout,
        regularization=recipe.regularization,
    )
    return Tagger(recipe, vocabulary_size, elmo)


@functools.partial(jax.jit, static_argnames=("tagger", "optimizer"), donate_argnames=("params", "state"))
def train_step(
    tagger: Tagger,
    optimizer: optax.GradientTransformation,
    params: Any,
    elmo: Any,
    state: Any,
    batch: Batch,
    key: jax.Array,
) -> tuple[Any, Any]:
    """One update by the mean loss of the batch's words; `elmo` is the biLM's fingerprint, which is not trained."""

    def loss(params: Any) -> jax.Array:
        logits, penalty = tagger.apply({"params": params, "elmo": elmo}, batch, train=True, rngs={"dropout": key})
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.tags)
        return (losses * batch.mask).sum() / batch.mask.sum() + penalty

    updates, state = optimizer.update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state


@functools.partial(jax.jit, static_argnames="tagger")
def count_right(tagger: Tagger, variables: Any, batch: Batch) -> jax.Array:
    """Words with the right tag."""
    logits, _ = tagger.apply(variables, batch)
    return ((logits.argmax(-1) == batch.tags) & batch.mask).sum()


def accuracy(tagger: Tagger, variables: Any, sentences: Sequence[Batch]) -> float:
    """Share of the words, in percent."""
    right = sum(int(count_right(tagger, variables, batch)) for batch in batches(sentences, tagger.recipe.batch_size))
    return 100 * right / sum(len(sentence.words) for sentence in sentences)


# ---- the trainings


@dataclasses.dataclass(frozen=True)
class Result:
    """Of one training: accuracies in percent; of each mix (input, output) gamma and the softmax of its weights."""

    variant: str
    seed: int
    epoch: int
    dev: float
    test: float
    gammas: list[float]
    weights: list[list[float]]


def train(
    variant: str, seed: int, tagger: Tagger, optimizer: optax.GradientTransformation, data: dict[str, list[Batch]],
    bilm: elmo_jax.EmbeddingBiLM, folder: Path,
) -> Result:  # fmt: skip
    """Trains a tagger; the epoch with the best accuracy on dev stays in `folder`, as an Orbax checkpoint."""
    rows, random, key = tagger.recipe.batch_size, np.random.default_rng(seed), jax.random.key(seed)
    variables = tagger.init(
        key, make_batch(data["train"][:1], rows)
    )  # "params" and the biLM's fingerprint, not the biLM
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
            manager.wait_until_finished()  # the next step gives the arrays' memory away
        best = manager.best_step()
        dev = manager.metrics(best)["dev"]
    variables = restore(folder, variables, bilm)
    mixes = [mix for _, mix in sorted(variables["params"].get("elmo", {}).items())]
    weights = [jax.nn.softmax(mix["weights"]).tolist() for mix in mixes if "weights" in mix]
    test = accuracy(tagger, variables, data["test"])
    return Result(variant, seed, best, dev, test, [float(mix["gamma"]) for mix in mixes], weights)


def best_checkpoint(folder: Path) -> ocp.CheckpointManager:
    """Keeps the checkpoint with the highest accuracy on dev."""
    options = ocp.CheckpointManagerOptions(max_to_keep=1, best_fn=lambda metrics: metrics["dev"], best_mode="max")
    return ocp.CheckpointManager(folder.absolute(), options=options)


def restore(folder: Path, like: Any, bilm: elmo_jax.EmbeddingBiLM) -> Any:
    """The variables of the best epoch, of the shapes of `like`. Raises `UserError` where another biLM made them."""
    with best_checkpoint(folder) as manager:
        variables = manager.restore(manager.best_step(), args=ocp.args.StandardRestore(like))
    if variables["elmo"]:  # the fingerprint is right; the biLM itself is not needed, its vectors are there
        elmo_jax.with_bilm(variables, bilm)
    return variables


def train_all(options: argparse.Namespace) -> list[Result]:
    """All variants and seeds; those that the workdir has are not trained again."""
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
    seen_twice = sorted(word for word, count in counts.items() if count > 1)  # other words are number 0
    vocabulary = {word: number for number, word in enumerate(seen_twice, 1)}
    print(f"running the biLM over {sum(counts.values()):,} words of train, and over dev and test", flush=True)
    data = {part: encode(sentences[part], vocabulary, recipe, bilm) for part in PARTS}
    updates = recipe.epochs * -(-len(data["train"]) // recipe.batch_size)
    rate = optax.warmup_cosine_decay_schedule(0.0, recipe.learning_rate, min(100, updates // 2), updates)
    optimizer = optax.chain(optax.clip_by_global_norm(recipe.clip_norm), optax.adam(rate))
    for number, (variant, seed) in enumerate(runs, 1):
        began, folder = time.monotonic(), paths[variant, seed].parent
        shutil.rmtree(folder, ignore_errors=True)  # of a training that was stopped
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
    """Makes the folder, or raises `UserError` where it holds trainings of other settings."""
    path = workdir / "settings.json"
    if path.exists():
        found = json.loads(path.read_text())
        other = ", ".join(name for name in settings if found.get(name) != settings[name])
        if other:
            raise UserError(f"{workdir}: holds trainings with another {other}; give another --workdir, or remove it")
    elif workdir.exists() and any(workdir.iterdir()):
        raise UserError(f"{workdir}: holds something that is no run of this experiment; give another --workdir")
    workdir.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(settings, indent=2) + "\n")


# ---- the report


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Over seeds; the deviation is that of a sample, 0 for one seed."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def table(results: Sequence[Result]) -> str:
    """Accuracies and learned layer weights."""
    lines = [f"{'':<18} {'test accuracy':>15} {'dev accuracy':>15} {'errors':>8}"]
    errors: dict[str, float] = {}
    variants = [variant for variant in VARIANTS if any(result.variant == variant for result in results)]
    for variant in variants:
        test, dev = ([getattr(r, part) for r in results if r.variant == variant] for part in ("test", "dev"))
        errors[variant] = 100 - float(np.mean(test))
        figures = ["{:.2f} ± {:.2f}".format(*mean_and_deviation(values)) for values in (test, dev)]
        fewer = f"{100 * (errors[variant] / errors[variants[0]] - 1):+.0f}%"
        lines.append(f"{VARIANTS[variant]:<18} {figures[0]:>15} {figures[1]:>15} {fewer:>8}")
    seeds = len(results) // len(variants)
    lines += [
        f"(UPOS, percent; mean ± standard deviation of {seeds} seeds; the epoch chosen on dev; errors: of test)",
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
    lines.append("(mean over seeds; weights: softmax-normalised, layer 0 first; of the biLSTM's input and output)")
    return "\n".join(lines)


def draw(results: Sequence[Result], path: Path) -> None:
    """Accuracies, a point a seed, and the learned layer weights."""
    # drawn without a screen
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
    left.set_title("test accuracy, percent; a point a seed, a line the mean")
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the experiment; returns the exit status as `elmo-jax` does."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--bilm", type=Path, required=True, metavar="RUN", help="a biLM's run or export")
    parser.add_argument("--data", required=True, metavar="SOURCE", help="a folder of CoNLL-U files, or tfds:NAME")
    parser.add_argument("--workdir", type=Path, default=Path("runs/pos_ewt"), metavar="DIR", help="(%(default)s)")
    parser.add_argument("--seeds", type=positive, default=5, metavar="N", help="(%(default)s)")
    parser.add_argument("--elmo-alone", action="store_true", help="no word vectors and no char CNN beside ELMo")
    parser.add_argument("--epochs", type=positive, default=Recipe.epochs, metavar="N", help="(%(default)s)")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        results = train_all(options)
    except UserError as error:
        print(f"pos_ewt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            f"pos_ewt: stopped; the same command goes on, finished trainings are in {options.workdir}", file=sys.stderr
        )
        return 130
    picture = options.workdir / "pos_ewt.png"
    draw(results, picture)
    print(f"\n{table(results)}\n\npicture  {picture}")
    return 0


def positive(text: str) -> int:
    """For argparse: a whole number, at least 1."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main())
