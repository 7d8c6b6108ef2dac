r"""Trains the translation LSTM whose encoder gives CoVe (McCann et al. 2017), and says how well it predicts German.

    python experiments/paper/cove/train.py --data multi30k --glove glove-6b-50d --workdir runs/cove
    python experiments/paper/table6.py --bilm english runs/cove --ewt UD_English-EWT
    python experiments/paper/grid.py cove --tasks snli --bilm english --cove runs/cove --data corpora

`table5.py` takes the workdir like a biLM too. In the workdir, `cove.safetensors` is the model that is best on dev, and
`state.safetensors` the newest one: if the command is stopped, run it again, and it continues after that epoch.

As in the paper of CoVe, encoder and decoder have two layers with dropout of 0.2, and the attention is Luong's general
one. Different are the size (H is 300 there, on vectors of 300 numbers), the optimizer (Adam with a cosine schedule
here, SGD there) and the decoder's initial state (zeros here). German words that occur fewer than 3 times are one word.

data      Multi30k in lower case, from the repository multi30k/dataset on GitHub: train, val and test_2016_flickr, each
          with the endings .en and .de, one sentence per line; McCann et al. train their CoVe-S on it
hardware  one CPU core; 5 minutes per epoch, next to other jobs
measured  a perplexity of 15.87 on dev and of 15.57 on test, per German word (<unk> and the end of a sentence count)
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # the scripts of the tables are there and import `cove` too

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cove.model import Translator
from cove.vectors import NAME, look_up, read, write
from elmo_jax.checkpoints.layout import flatten, unflatten
from elmo_jax.distributed.cpu import keep_freed_memory
from elmo_jax.errors import UserError
from elmo_jax.files import digest_of, write_json
from elmo_jax.runs.progress import Progress
from elmo_jax.tasks.core.data import CPU, Buckets, choose_shapes
from elmo_jax.tasks.core.vocabulary import PACKAGED, read_vectors
from elmo_jax.text_files import read_lines
from elmo_jax.types import Tree
from elmo_jax.words import split_words

PARTS = {"train": "train", "dev": "val", "test": "test_2016_flickr"}  # the names of the files without their endings
PADDING, UNKNOWN, END = 0, 1, 2  # ids of German words; those of words with their own id follow
MIN_COUNT = 3  # of a German word with its own id, in the training text
BATCH, SHAPES, RATE, SEED = 64, 4, 2e-3, 0

Pair = tuple[list[str], list[str]]  # the words of an English sentence and of its German translation


def read_pairs(folder: Path, name: str) -> list[Pair]:
    """Reads the pairs of `NAME.en` and `NAME.de` of which no sentence is empty; `UserError` if the two do not match."""
    texts = [[split_words(line.text) for line in read_lines(folder / f"{name}.{end}")] for end in ("en", "de")]
    if len(texts[0]) != len(texts[1]):
        raise UserError(f"{folder / name}.en: has {len(texts[0]):,} lines, but {name}.de has {len(texts[1]):,}")
    pairs = [pair for pair in zip(*texts, strict=True) if all(pair)]
    if not pairs:
        raise UserError(f"{folder / name}.en: expected sentences, one per line")
    return pairs


class Part(NamedTuple):
    """The pairs of one part of the data, the vectors of English words and the ids of German words."""

    pairs: Sequence[Pair]
    vectors: Mapping[str, np.ndarray]
    german: Mapping[str, int]

    def batches(self, rng: np.random.Generator | None = None) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields the arguments of `Translator` for batches of pairs of similar length, in an order drawn from `rng`."""
        sizes = [((1, len(english)), (1, len(german) + 1)) for english, german in self.pairs]
        for batch in Buckets.of(sizes, choose_shapes(sizes, SHAPES, CPU)).epoch(BATCH, rng):
            (_, steps), (_, german_steps) = batch.shape
            chosen = [self.pairs[number] for number in batch.examples]
            ids = np.full((BATCH, german_steps), PADDING, np.int32)
            for row, (_, words) in enumerate(chosen):
                ids[row, : len(words) + 1] = [*(self.german.get(word, UNKNOWN) for word in words), END]
            yield *look_up(self.vectors, [words for words, _ in chosen], BATCH, steps), ids


class Training:
    """A model of H = `size` and V = `words`, its optimizer with a schedule over all `steps`, and its programs."""

    def __init__(self, size: int, words: int, steps: int) -> None:
        self.model = Translator(size, words)
        adam = optax.adam(optax.cosine_decay_schedule(RATE, steps))
        self.optimizer = optax.chain(optax.clip_by_global_norm(5.0), adam)
        self.step = jax.jit(self._step, donate_argnums=0)
        self.evaluate = jax.jit(functools.partial(self._loss, key=None))

    def _loss(self, params: Tree, batch: Sequence[jax.Array], key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """Returns the mean loss per German word, and the number of these; with a key for dropout in training."""
        rngs = {} if key is None else {"dropout": key}
        losses = self.model.apply({"params": params}, *batch, deterministic=key is None, rngs=rngs)
        words = batch[2] != PADDING
        return jnp.mean(losses, where=words), words.sum()

    def _step(self, state: tuple[Tree, Any], batch: Sequence[jax.Array], key: jax.Array) -> tuple[Any, jax.Array]:
        (loss, _), gradient = jax.value_and_grad(self._loss, has_aux=True)(state[0], batch, key)
        updates, moments = self.optimizer.update(gradient, state[1])
        return (optax.apply_updates(state[0], updates), moments), loss

    def epoch(self, state: tuple[Tree, Any], part: Part, number: int) -> tuple[Any, float]:
        """Trains on all pairs once, and returns the new state and the mean loss of its steps."""
        key, losses = jax.random.fold_in(jax.random.key(SEED + 1), number), []
        with Progress(f"epoch {number + 1}", "pairs", len(part.pairs)) as progress:
            for number_in_epoch, batch in enumerate(part.batches(np.random.default_rng([SEED, number]))):
                state, loss = self.step(state, batch, jax.random.fold_in(key, number_in_epoch))
                losses.append(float(loss))
                progress.add(BATCH)
        return state, float(np.mean(losses))

    def perplexity(self, params: Tree, part: Part) -> float:
        """Returns the perplexity per German word; <unk> and the end of a sentence count as words."""
        losses = np.array([self.evaluate(params, batch) for batch in part.batches()], np.float64)
        return math.exp(np.average(losses[:, 0], weights=losses[:, 1]))


def train(options: argparse.Namespace) -> dict[str, Any]:
    pairs = {part: read_pairs(options.data, name) for part, name in PARTS.items()}
    glove = options.glove if options.glove == PACKAGED else str(Path(options.glove).absolute())
    words = {word for part in pairs.values() for english, _ in part for word in english}
    vectors = read_vectors(glove, words | {word.lower() for word in words})
    dim = len(next(iter(vectors.values()), ()))
    if not dim:
        raise UserError(f"{glove}: has none of the English words of {options.data}")
    if options.size < dim:
        raise UserError(f"--size: expected at least {dim}, the size of the word vectors, got {options.size}")
    counts = Counter(word for _, german in pairs["train"] for word in german)
    ids = {word: number for number, word in enumerate(sorted(w for w in counts if counts[w] >= MIN_COUNT), END + 1)}
    parts = {part: Part(sentences, vectors, ids) for part, sentences in pairs.items()}
    training = Training(options.size, len(ids) + END + 1, options.epochs * -(-len(pairs["train"]) // BATCH))
    settings = {"size": options.size, "epochs": options.epochs, "glove": glove, "data": digest_of(pairs)}
    params = jax.jit(training.model.init)(jax.random.key(SEED), *next(parts["train"].batches()))["params"]
    state, history = (params, training.optimizer.init(params)), []
    path, best = options.workdir / "state.safetensors", options.workdir / NAME
    if path.is_file():
        arrays, metadata = read(path)
        if metadata["settings"] != settings:
            raise UserError(f"{path}: was trained with other options or data; give another --workdir, or delete it")
        state = jax.tree.unflatten(jax.tree.structure(state), [jnp.asarray(arrays[name]) for name in sorted(arrays)])
        history = metadata["history"]
    for number in range(len(history), options.epochs):
        state, loss = training.epoch(state, parts["train"], number)
        dev = training.perplexity(state[0], parts["dev"])
        print(f"epoch {number + 1}: training loss {loss:.3f}, perplexity on dev {dev:.2f}", flush=True)
        if dev < min(history, default=math.inf):
            write(best, flatten(state[0]), {"glove": glove})
        history.append(dev)
        leaves = {f"{number:04}": leaf for number, leaf in enumerate(jax.tree.leaves(state))}
        write(path, leaves, {"settings": settings, "history": history})
    test = training.perplexity(unflatten(read(best)[0]), parts["test"])
    return {**settings, "german_words": len(ids), "history": history, "dev": min(history), "test": test}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder of Multi30k's files")
    parser.add_argument("--glove", required=True, metavar="FILE", help=f"a text file of GloVe, or {PACKAGED}")
    parser.add_argument("--workdir", type=Path, default=Path("runs/cove"), metavar="DIR", help="(%(default)s)")
    parser.add_argument("--size", type=int, default=100, metavar="H", help="units per direction (%(default)s)")
    parser.add_argument("--epochs", type=int, default=7, metavar="N", help="(%(default)s)")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    try:
        if options.epochs < 1:
            raise UserError(f"--epochs: expected at least 1, got {options.epochs}")
        options.workdir.mkdir(parents=True, exist_ok=True)
        result = train(options)
        write_json(options.workdir / "result.json", result)
    except (UserError, OSError) as error:
        print(f"cove: {error}", file=sys.stderr)
        return 2
    print(f"{options.workdir / NAME}: perplexity {result['dev']:.2f} on dev, {result['test']:.2f} on test")
    return 0


if __name__ == "__main__":
    sys.exit(main())
