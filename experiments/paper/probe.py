"""Trains a linear classifier of frozen word vectors: one layer and a softmax (paper, section 5.3, Table 6).

Shapes: N words, B words per batch, M layers that are mixed (1 for the paper's classifiers), F numbers per layer, K
classes.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from elmo_jax.types import Tree

_EVALUATED = 8_192  # the number of words classified at once
UNKNOWN = -1  # the class of a tag that the training set does not have, which is never predicted


class Words(NamedTuple):
    x: jax.Array  # float16 or float32 [N, M, F], the input of the classifier
    y: jax.Array  # int32 [N], the classes


class Recipe(NamedTuple):
    batch_size: int = 256  # the number of words per step
    learning_rate: float = 1e-3  # the constant learning rate of Adam
    epochs: int = 100  # the largest number of epochs
    patience: int = 5  # the number of epochs without a better accuracy on dev after which training stops


class Probed(NamedTuple):
    """The classifier of the epoch that was best on dev."""

    dev: float  # the accuracy on dev in percent
    test: float  # the accuracy on test in percent
    epoch: int  # the number of the epoch, from 1


def classes(parts: Sequence[Sequence[str]]) -> tuple[list[str], list[np.ndarray]]:
    """Returns the tags of the training set, the first part, in order, and those of all parts as int32 numbers."""
    names = sorted(set(parts[0]))
    numbers = {name: number for number, name in enumerate(names)}
    return names, [np.array([numbers.get(tag, UNKNOWN) for tag in tags], np.int32) for tags in parts]


def train(parts: Sequence[Words], size: int, recipe: Recipe, seed: int) -> Probed:
    """Trains a classifier with Adam on the mean cross-entropy, and stops by its accuracy on dev.

    The `parts` are the training set, dev, which selects the epoch, and test; `size` is K. With M > 1, the classifier
    also learns a weight per layer and reads the softmax-weighted sum of the layers.
    """
    train, dev, test = parts
    random = np.random.default_rng(seed)
    optimizer = _adam(recipe.learning_rate)
    words, mixed, features = train.x.shape
    params: Tree = {"mix": jnp.zeros(mixed), "kernel": jnp.zeros((features, size)), "bias": jnp.zeros(size)}
    state = (params, optimizer.init(params))
    rows = min(recipe.batch_size, words)
    best = Probed(-1.0, -1.0, 0)
    for epoch in range(1, recipe.epochs + 1):
        # The words that do not fill a batch are left out; which words these are differs between epochs.
        order = random.permutation(words)[: words // rows * rows].reshape(-1, rows)
        state = _epoch(optimizer, state, train, jnp.asarray(order))
        accuracy = _accuracy(state[0], dev)
        if accuracy > best.dev:
            best = Probed(accuracy, _accuracy(state[0], test), epoch)
        elif epoch - best.epoch >= recipe.patience:
            break
    return best


@functools.cache
def _adam(learning_rate: float) -> optax.GradientTransformation:
    """Returns the optimizer; it is the same object for one rate, so that seeds and layers share a compiled program."""
    return optax.adam(learning_rate)


@functools.partial(jax.jit, static_argnames="optimizer", donate_argnames="state")
def _epoch(
    optimizer: optax.GradientTransformation, state: tuple[Tree, optax.OptState], words: Words, order: jax.Array
) -> tuple[Tree, optax.OptState]:
    """Makes one step per row of `order` [steps, B]."""

    def step(state: tuple[Tree, optax.OptState], at: jax.Array) -> tuple[tuple[Tree, optax.OptState], None]:
        params, moments = state
        gradient = jax.grad(_loss)(params, words.x[at], words.y[at])
        updates, moments = optimizer.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments), None

    return lax.scan(step, state, order)[0]


def _loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(_logits(params, x), y).mean()


def _logits(params: Tree, x: jax.Array) -> jax.Array:
    weights = jax.nn.softmax(params["mix"])
    seen = jnp.einsum("m,bmf->bf", weights, x.astype(jnp.float32), precision=lax.Precision.HIGHEST)
    return jnp.dot(seen, params["kernel"], precision=lax.Precision.HIGHEST) + params["bias"]


@jax.jit
def _right(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sum(_logits(params, x).argmax(axis=-1) == y)


def _accuracy(params: Tree, words: Words) -> float:
    starts = range(0, len(words.y), _EVALUATED)
    correct = [
        _right(params, words.x[start : start + _EVALUATED], words.y[start : start + _EVALUATED]) for start in starts
    ]
    return 100 * float(sum(map(int, correct))) / len(words.y)
