"""The initial softmax rows of a fine-tuning, and texts that are read with the vocabulary of another text.

Shapes: V words of the softmax, A words added, P projection, W characters.

The negatives of the sampled softmax are drawn by rank, as if words were sorted by descending frequency. On a domain
they are not: its frequent words may come late in the model's vocabulary, and added words come after all others. This
only reduces efficiency. Each logit is corrected by the log of the expected count of its rank among the negatives,
whatever word has that rank, so that any order has the same optimum; a frequent word at a late rank is merely drawn
rarely, and then with a large weight.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from elmo_jax.characters import encode_chars
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.lexicon import UNKNOWN_ID
from elmo_jax.data.windows import BlockSource
from elmo_jax.types import Tree


def extended_softmax(softmax: Tree, counts: np.ndarray, size: int) -> Tree:
    """Returns a softmax with rows for the words that its vocabulary is extended by.

    Before, such a word was `<UNK>` as a target. Its row starts as that of `<UNK>`, with the bias lowered by the log of
    the word's share of all `<UNK>` in the domain's training text, so that p(word | context) is p(`<UNK>` | context)
    times this share. A word that the training text does not use counts as used once, in the shares of all words. The
    old rows, including that of `<UNK>`, are not changed. (`<UNK>` also keeps the probability of the added words, until
    training corrects it.) The shares sum to at most 1, so the probability of an old word is divided by at most
    1 + p(`<UNK>` | context), whatever the added words are.

    Args:
      softmax: the old softmax, `kernel` [V, P] and `bias` [V].
      counts: int64 [types], the counts in the domain's training text of the V words, the A added words, and all others.
      size: V + A.
    """
    old = len(softmax["bias"])
    uses = np.maximum(counts[old:size], 1)  # [A]; at least 1, since a given vocabulary may have unused words
    share = uses / (counts[UNKNOWN_ID] + uses.sum() + counts[size:].sum())
    kernel = np.broadcast_to(softmax["kernel"][UNKNOWN_ID], (size - old, softmax["kernel"].shape[1]))
    bias = softmax["bias"][UNKNOWN_ID] + np.log(share)
    return {
        "kernel": np.concatenate([softmax["kernel"], kernel]),
        "bias": np.concatenate([softmax["bias"], bias.astype(np.float32)]),
    }


def unigram_softmax(counts: np.ndarray, size: int, projection: int) -> Tree:
    """Returns the initial softmax for a biLM without one, `kernel` [V, P] of zeros and `bias` [V], of unigrams.

    The `counts` int64 [types] are those of the lexicon in the training text; words beyond `size` = V are `<UNK>`.
    """
    uses = counts[:size].astype(np.float64)
    uses[UNKNOWN_ID] += counts[size:].sum()
    uses += 1  # add-one smoothing, since a word of the vocabulary may be absent from the training text
    bias = np.log(uses / uses.sum())
    return {"kernel": np.zeros((size, projection), np.float32), "bias": bias.astype(np.float32)}


def heldout_under(corpus: Corpus, vocabulary: Sequence[str], max_characters: int) -> tuple[BlockSource, np.ndarray]:
    """Returns the held-out text of a corpus with the words of any vocabulary as targets, in the same tokens.

    The second result is the character ids [types, W] of the words of both, those of the vocabulary first.
    """
    words, row_of = corpus.words(), {word: i for i, word in enumerate(vocabulary)}
    others = [word for word in words if word not in row_of]
    row_of |= {word: len(vocabulary) + i for i, word in enumerate(others)}
    ids = np.array([row_of[word] for word in words], np.int32)
    return _Renumbered(corpus.blocks("heldout"), ids), encode_chars([*vocabulary, *others], max_characters)


@dataclasses.dataclass(frozen=True)
class _Renumbered:
    """A `BlockSource` with other ids for the same words."""

    blocks: BlockSource
    ids: np.ndarray  # [types] the new id of each old id

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.ids[self.blocks[index]]
