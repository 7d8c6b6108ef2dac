"""Softmax rows that fine-tuning begins with, and texts read with the vocabulary of another.

Shapes: V words of the softmax, A words added, P projection, W characters.

The negatives of the sampled softmax are drawn by rank, as if words stood by falling frequency. On a domain they do not:
its frequent words may stand low in the model's vocabulary, and words added to it stand behind all others. That costs
nothing but efficiency. Each logit is corrected by the logarithm of how often its rank is expected among the negatives,
whatever word stands there, so any order gives the same optimum; a frequent word at a high rank is only drawn rarely,
and then with a large weight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from elmo_jax.characters import spell
from elmo_jax.data.batches import BlockSource
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.lexicon import UNKNOWN_ID
from elmo_jax.types import Tree


@dataclasses.dataclass(frozen=True)
class OtherText:
    """A text to evaluate on that has a lexicon of its own; its first words are the softmax vocabulary."""

    blocks: BlockSource
    spellings: np.ndarray  # [types, W]


def extended_softmax(softmax: Tree, counts: np.ndarray, size: int) -> Tree:
    """The softmax with rows for the words that its vocabulary was extended by.

    Until now such a word was `<UNK>` as a target. Its row starts as that of `<UNK>`, with the bias lowered by the log
    of the word's share of all that was `<UNK>` in the domain's training text: p(word | context) is p(`<UNK>` | context)
    times its share. The old rows are not touched, that of `<UNK>` among them (it keeps the shares it gave away, until
    training corrects it): so the probability of an old word is divided by 1 + p(`<UNK>` | context) at most.

    Args:
      softmax: `kernel` [V, P] and `bias` [V].
      counts: int64 [types] of the domain's lexicon, uses in its training text: first of the V words, then of the A
        added, then of all others.
      size: V + A.

    Returns:
      `kernel` [V + A, P] and `bias` [V + A].
    """
    old = len(softmax["bias"])
    unknown = counts[UNKNOWN_ID] + counts[old:].sum()
    share = np.maximum(counts[old:size], 1) / unknown  # [A]; a word of a vocabulary that was given may be unused
    kernel = np.broadcast_to(softmax["kernel"][UNKNOWN_ID], (size - old, softmax["kernel"].shape[1]))
    bias = softmax["bias"][UNKNOWN_ID] + np.log(share)
    return {
        "kernel": np.concatenate([softmax["kernel"], kernel]),
        "bias": np.concatenate([softmax["bias"], bias.astype(np.float32)]),
    }


def unigram_softmax(counts: np.ndarray, size: int, projection: int) -> Tree:
    """A softmax to fit to a biLM that comes without one: whatever the context, each word as often as in the text.

    Args:
      counts: int64 [types] of the lexicon, uses in the training text.
      size: V, the words of the softmax; all others count as `<UNK>`.
      projection: P.

    Returns:
      `kernel` [V, P], zeros, and `bias` [V].
    """
    uses = counts[:size].astype(np.float64)
    uses[UNKNOWN_ID] += counts[size:].sum()
    uses += 1  # a word of the vocabulary need not be in the training text
    bias = np.log(uses / uses.sum())
    return {"kernel": np.zeros((size, projection), np.float32), "bias": bias.astype(np.float32)}


def heldout_under(corpus: Corpus, vocabulary: Sequence[str], max_characters: int) -> OtherText:
    """The held-out text of a corpus with the words of any vocabulary as its targets; the tokens stay the same."""
    words, place = corpus.words(), {word: i for i, word in enumerate(vocabulary)}
    others = [word for word in words if word not in place]
    place |= {word: len(vocabulary) + i for i, word in enumerate(others)}
    ids = np.array([place[word] for word in words], np.int32)
    return OtherText(_Renumbered(corpus.blocks("heldout"), ids), spell([*vocabulary, *others], max_characters))


@dataclasses.dataclass(frozen=True)
class _Renumbered:
    """BlockSource with other ids for the same words."""

    blocks: BlockSource
    ids: np.ndarray  # [types] new id of each old one

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.ids[self.blocks[index]]
