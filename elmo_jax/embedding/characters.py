"""Spells the words of sentences as character ids, the input of `ELMo`.

Shapes: B sentences, T words of the longest sentence, W characters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elmo_jax.characters import MAX_CHARACTERS, spell
from elmo_jax.embedding.embed import check_sentences
from elmo_jax.embedding.word_cache import key


def character_ids(sentences: Sequence[Sequence[str]], max_characters: int = MAX_CHARACTERS) -> np.ndarray:
    """Returns character ids + 1, the input of `ELMo`: int32 [B, T, W], zeros beyond the end of a sentence.

    `EmbeddingBiLM.character_ids` does the same with the biLM's own W.

    Args:
      sentences: B lists of words.
      max_characters: W, that of the biLM; `ELMo` refuses any other.

    Raises:
      UserError: a sentence is a string, or a word is not a string or cannot be encoded.
    """
    check_sentences(sentences)
    ids = np.zeros((len(sentences), max(map(len, sentences), default=0), max_characters), np.int32)
    for row, sentence in enumerate(sentences):
        for word in sentence:
            key(word, max_characters)
        ids[row, : len(sentence)] = spell(sentence, max_characters) + 1
    return ids
