"""Measures what the layers of a biLM know of parts of speech with linear classifiers of frozen vectors (section 5.3).

    python experiments/pos_ewt_layers.py --bilm runs/fiction --data UD_English-EWT

A classifier that reads the vector of one word is trained for each layer, for the learned mix of all layers (equation
1), for all layers concatenated, and for what the last LSTM layer adds to its input. This is what `pos_ewt.py` measures
without the word vectors, the character CNN and the biLSTM of its tagger.

hardware  2 CPU cores
time      84 s
result    85.8 / 90.8 / 90.6 percent of the UPOS tags on test for the token layer and LSTM layers 1 and 2; 91.0 for all
          layers mixed, 92.3 for all layers concatenated; 5 seeds
measured  the time and the result, with the biLM of pretrain_fiction.py

Shapes: N words, L LSTM layers of the biLM, P dimension of its projection, F features of a classifier, K tags.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ewt.arrays import encode
from ewt.recipe import Recipe
from ewt.report import mean_and_deviation
from ewt.treebank import PARTS, TAGS, Sentence, read_treebank
from pos_ewt import positive

import elmo_jax
from elmo_jax import UserError

WORDS, LEARNING_RATE = 512, 3e-3  # the number of words per batch; Adam's learning rate, which a cosine lowers to 0
Features = Callable[[jax.Array, jax.Array], jax.Array]  # (mix [L+1], layers [N, L+1, 2P]) -> [N, F]


def features(layers: int, skip_connections: bool) -> dict[str, Features]:
    """Returns the possible inputs of a classifier by name, for a biLM with `layers` LSTM layers."""
    found: dict[str, Features] = {"characters": lambda mix, x: x[:, 0]}
    for layer in range(1, layers + 1):
        found[f"LSTM layer {layer}"] = lambda mix, x, layer=layer: x[:, layer]
    if skip_connections and layers > 1:
        found[f"LSTM layer {layers}, its input taken away"] = lambda mix, x: x[:, layers] - x[:, layers - 1]
    found["all mixed"] = lambda mix, x: jnp.einsum("l,nlf->nf", jax.nn.softmax(mix), x)
    found["all side by side"] = lambda mix, x: x.reshape(len(x), -1)
    return found


def words_of(sentences: Sequence[Sentence], bilm: elmo_jax.EmbeddingBiLM) -> tuple[np.ndarray, np.ndarray]:
    """Returns the layers [N, L+1, 2P] and the tags [N] of all words."""
    encoded = encode(sentences, {}, Recipe(), bilm)
    return np.concatenate([s.layers for s in encoded]), np.concatenate([s.tags for s in encoded])


@functools.partial(jax.jit, static_argnames=("optimizer", "see"), donate_argnames=("params", "state"))
def train_step(
    optimizer: optax.GradientTransformation,
    see: Features,
    params: dict,
    state: optax.OptState,
    x: jax.Array,
    y: jax.Array,
) -> tuple[dict, optax.OptState]:
    """Makes one update by the mean loss of a batch of words."""

    def loss(params: dict) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(classify(see, params, x), y).mean()

    updates, state = optimizer.update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state


@functools.partial(jax.jit, static_argnames="see")
def classify(see: Features, params: dict, x: jax.Array) -> jax.Array:
    """Returns the logits [N, K]."""
    return see(params["mix"], x) @ params["kernel"] + params["bias"]


def train(see: Features, seed: int, epochs: int, data: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Trains a classifier and returns its accuracy in percent by part; the seed draws the order of the words."""
    x, y = data["train"]
    rows = min(WORDS, len(x))
    mix, updates = jnp.zeros(x.shape[1]), epochs * (len(x) // rows)
    shape = jax.eval_shape(see, mix, x[:1]).shape
    params = {"mix": mix, "kernel": jnp.zeros((shape[1], len(TAGS))), "bias": jnp.zeros(len(TAGS))}
    optimizer = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, updates))
    state, random = optimizer.init(params), np.random.default_rng(seed)
    for _ in range(epochs):
        order = random.permutation(len(x))
        for start in range(0, len(x) - rows + 1, rows):
            at = order[start : start + rows]
            params, state = train_step(optimizer, see, params, state, x[at], y[at])
    return {part: 100 * float((classify(see, params, xs).argmax(-1) == ys).mean()) for part, (xs, ys) in data.items()}


def correlations(layers: np.ndarray) -> str:
    """Returns the correlations between each two of the layers [N, L+1, 2P], over words and features, as text."""
    found = np.corrcoef([layers[:, layer].ravel() for layer in range(layers.shape[1])])
    pairs = [f"{a} and {b} {found[a, b]:.2f}" for b in range(len(found)) for a in range(b)]
    return "correlation of the layers' numbers: " + " · ".join(pairs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the experiment and returns the exit status, which is as that of `elmo-jax`."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--bilm", type=Path, required=True, metavar="RUN", help="the run or export of a biLM")
    parser.add_argument("--data", required=True, metavar="SOURCE", help="a folder of CoNLL-U files, or tfds:NAME")
    parser.add_argument("--seeds", type=positive, default=5, metavar="N", help="number of seeds (default: %(default)s)")
    parser.add_argument(
        "--epochs", type=positive, default=6, metavar="N", help="number of epochs (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        sentences = read_treebank(options.data)
        bilm = elmo_jax.load_bilm(options.bilm)
    except UserError as error:
        print(f"pos_ewt_layers: {error}", file=sys.stderr)
        return 2
    data = {part: words_of(sentences[part], bilm) for part in PARTS}
    print(f"{'a linear classifier on':<42} {'test accuracy':>15} {'dev accuracy':>15}", flush=True)
    lstm = bilm.config.lstm
    for name, see in features(lstm.layers, lstm.skip_connections).items():
        found = [train(see, seed, options.epochs, data) for seed in range(options.seeds)]
        test, dev = (
            "{:.2f} ± {:.2f}".format(*mean_and_deviation([f[part] for f in found])) for part in ("test", "dev")
        )
        print(f"{name:<42} {test:>15} {dev:>15}", flush=True)
    print(f"(UPOS, percent; mean ± standard deviation of {options.seeds} seeds)\n{correlations(data['dev'][0])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
