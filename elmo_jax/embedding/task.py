"""What a task model needs around `ELMo`: its input, and the frozen biLM among its variables.

Shapes: B sentences, T words of the longest, W characters, U distinct words outside the cache, N rows of a cache,
P projection.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
from flax import nnx

from elmo_jax.characters import MAX_CHARACTERS, spell
from elmo_jax.checkpoints.export import PretrainedBiLM
from elmo_jax.embedding.bilm import frozen_tree
from elmo_jax.embedding.embed import check_sentences
from elmo_jax.embedding.words import key
from elmo_jax.errors import UserError


@nnx.register_variable_name("bilm")
class FrozenBiLM(nnx.Variable):
    """The kind of the biLM's arrays in an NNX model: `nnx.state(model, nnx.Not(FrozenBiLM))` is what to checkpoint."""


def with_bilm(variables: Mapping[str, Any], bilm: PretrainedBiLM, cache: CachedWords | None = None) -> dict[str, Any]:
    """The variables of a task model with the frozen biLM among them, wherever in the model an `ELMo` is.

    Args:
      variables: what `init` returned, or a checkpoint of it: `params` and `elmo`.
      bilm: the biLM the model was made with.
      cache: vectors of words that need no characters.

    Returns:
      `variables` and the collection `bilm`. Only `params` is to be trained; leave `bilm` out of checkpoints.

    Raises:
      UserError: the model was trained with another biLM (its fingerprint differs), or holds no `ELMo`.
    """
    tree: dict[str, Any] = {"tree": frozen_tree(bilm)}
    if cache is not None and len(cache.vectors):
        if cache.vectors.shape[1] != bilm.config.lstm.projection:
            size = bilm.config.lstm.projection
            raise UserError(f"cache: vectors of {cache.vectors.shape[1]} numbers, the biLM's have {size}")
        tree["cache"] = jax.device_put(cache.vectors)

    def beside(node: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in node.items():
            if name == "fingerprint":
                _check_fingerprint(value, bilm)
                found |= tree
            else:
                found[name] = beside(value)
        return found

    if not variables.get("elmo"):
        raise UserError("variables: no collection 'elmo'; expected what init of a model with elmo_jax.ELMo returns")
    return {**variables, "bilm": beside(variables["elmo"])}


def add_bilm(module: nnx.bridge.ToNNX, bilm: PretrainedBiLM, cache: CachedWords | None = None) -> nnx.bridge.ToNNX:
    """`with_bilm` for an `ELMo` in an NNX model; the same module is returned.

    Args:
      module: `nnx.bridge.ToNNX(bilm.elmo(), rngs=rngs).lazy_init(characters)`.
      bilm: the biLM the model was made with. Its arrays become variables of the kind `FrozenBiLM`.
      cache: vectors of words that need no characters.

    Raises:
      UserError: as `with_bilm`.
    """
    variables = {"elmo": {"fingerprint": module.fingerprint[...]}} if hasattr(module, "fingerprint") else {}
    for name, value in with_bilm(variables, bilm, cache)["bilm"].items():
        setattr(module, name, nnx.data(jax.tree.map(FrozenBiLM, value)))
    return module


def _check_fingerprint(found: Any, bilm: PretrainedBiLM) -> None:
    stored = np.asarray(found).astype(np.uint8).tobytes().hex()
    if stored and stored != bilm.fingerprint:
        raise UserError(
            f"the model was made with another biLM: its fingerprint is {stored[:12]}…, this one's"
            f" {bilm.fingerprint[:12]}…; load the biLM it was trained with"
        )


def character_ids(sentences: Sequence[Sequence[str]], max_characters: int = MAX_CHARACTERS) -> np.ndarray:
    """Character ids + 1 as `ELMo` takes them: int32 [B, T, W], zeros past a sentence's end.

    Raises:
      UserError: a sentence that is a string, or something that is no word.
    """
    check_sentences(sentences)
    ids = np.zeros((len(sentences), max(map(len, sentences), default=0), max_characters), np.int32)
    for row, sentence in enumerate(sentences):
        for word in sentence:
            key(word, max_characters)
        ids[row, : len(sentence)] = spell(sentence, max_characters) + 1
    return ids


class CachedWords:
    """Words with vectors that are there already, and the input of `ELMo` for sentences of these and other words.

    Without words it is still of use: each distinct word of a batch is encoded once.
    """

    def __init__(self, words: Sequence[str], vectors: np.ndarray, max_characters: int = MAX_CHARACTERS) -> None:
        """`vectors` [N, P], one row a word. Raises `UserError` where the numbers differ."""
        if len(words) != len(vectors):
            raise UserError(f"{len(words)} words for {len(vectors)} vectors; expected as many")
        self.vectors = np.asarray(vectors, np.float32)
        self._size = max_characters
        self._rows = {word: row for row, word in reversed(list(enumerate(words, 1)))}

    @classmethod
    def read(
        cls, vocabulary: str | os.PathLike[str], cache: str | os.PathLike[str], max_characters: int = MAX_CHARACTERS
    ) -> CachedWords:
        """A word list, one a line, and its vectors, as `elmo-jax embed --words` and the original write them.

        Raises:
          UserError: a file that cannot be read, or is not of this format.
        """
        try:
            words = Path(vocabulary).read_bytes().decode().removesuffix("\n").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{vocabulary}: cannot be read ({error}); expected one word a line, UTF-8") from None
        try:
            with h5py.File(cache, "r") as file:
                node = file["embedding"]
                if not isinstance(node, h5py.Dataset) or node.ndim != 2 or node.dtype.kind != "f":
                    raise UserError(f"{cache}: 'embedding' is no dataset [words, dimension] of numbers")
                if node.shape[0] != len(words):
                    raise UserError(f"{cache}: {node.shape[0]} vectors for the {len(words)} words of {vocabulary}")
                vectors = node[()]
        except (OSError, KeyError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:120]
            raise UserError(f"{cache}: no cache of token vectors ({reason})") from None
        return cls(words, vectors, max_characters)

    def __call__(
        self, sentences: Sequence[Sequence[str]], rows: int = 0, steps: int = 0, others: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """The input of `ELMo`.

        Args:
          sentences: B lists of words.
          rows, steps, others: at least so many rows (B), positions (T) and spelt words (U), so that batches have one
            shape and nothing is compiled anew.

        Returns:
          characters: int32 [U, W] raw ids of the distinct words outside the cache.
          words: int32 [B, T], see `ELMo`.

        Raises:
          UserError: a sentence that is a string, or something that is no word.
        """
        check_sentences(sentences)
        longest = max(map(len, sentences), default=0)
        words = np.zeros((max(rows, len(sentences)), max(steps, longest)), np.int32)
        spelt: dict[str, int] = {}
        for row, sentence in enumerate(sentences):
            for step, word in enumerate(sentence):
                known = self._rows.get(word)
                if known is None:
                    key(word, self._size)
                    known = 1 + len(self.vectors) + spelt.setdefault(word, len(spelt))
                words[row, step] = known
        characters = spell([*spelt] + [""] * max(max(others, 1) - len(spelt), 0), self._size)
        return characters.astype(np.int32), words
