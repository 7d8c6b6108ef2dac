"""Makes batches of arrays from the sentences of a treebank.

Shapes: B sentences per batch, T words of the longest sentence, W characters per word, L LSTM layers of the biLM,
P dimension of its projection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

import elmo_jax
from ewt.recipe import Recipe
from ewt.treebank import Sentence

WIDTHS = (8, 16, 24, 40, 80)  # T is the next of these or of their doubles, so that few programs are compiled


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch: words and tags [B, T], characters [B, T, W], layers [B, T, L+1, 2P], mask [B, T] (true on words)."""

    words: Any
    tags: Any
    characters: Any
    layers: Any
    mask: Any


def encode(
    sentences: Sequence[Sentence], vocabulary: dict[str, int], recipe: Recipe, bilm: elmo_jax.EmbeddingBiLM
) -> list[Batch]:
    """Returns the arrays of each sentence, without B. The biLM is frozen, so it reads each sentence only once."""
    order = sorted(
        range(len(sentences)), key=lambda i: len(sentences[i].words)
    )  # sentences of similar length share a batch
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
    """Stacks sentences; missing rows and steps are filled up with zeros."""
    longest = max(len(sentence.words) for sentence in sentences)
    steps = next(width << power for power in range(32) for width in WIDTHS if width << power >= longest)

    def stack(*arrays: np.ndarray) -> np.ndarray:
        filled = np.zeros((rows, steps, *arrays[0].shape[1:]), arrays[0].dtype)
        for row, array in enumerate(arrays):
            filled[row, : len(array)] = array
        return filled

    return jax.tree.map(stack, *sentences)


def batches(sentences: Sequence[Batch], rows: int, random: np.random.Generator | None = None) -> Iterator[Batch]:
    """Yields batches of sentences of similar length, which differ at each call if `random` is given."""
    lengths = np.asarray([len(sentence.words) for sentence in sentences], np.float64)
    order = np.argsort(lengths + (random.uniform(0, 3, len(lengths)) if random else 0), kind="stable")
    starts = np.arange(0, len(order), rows)
    for start in random.permutation(starts) if random else starts:
        yield make_batch([sentences[i] for i in order[start : start + rows]], rows)
