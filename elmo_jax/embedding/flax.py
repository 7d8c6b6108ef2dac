"""Prepares the input of `ELMo` in a task model, and adds the frozen biLM to the model's variables.

Shapes: B sentences, T words of the longest sentence, W characters, U distinct words outside the cache, N rows of a
cache, P projection.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from elmo_jax.characters import MAX_CHARACTERS, encode_chars
from elmo_jax.checkpoints.export import PretrainedBiLM
from elmo_jax.embedding.bilm import frozen_tree
from elmo_jax.embedding.embed import check_sentences
from elmo_jax.embedding.word_table import check_word
from elmo_jax.embedding.words_file import read_words
from elmo_jax.errors import UserError
from elmo_jax.files import local
from elmo_jax.model.precision import standard_numerics


@nnx.register_variable_name("bilm")
class FrozenBiLM(nnx.Variable):
    """The variable type of the biLM's arrays in an NNX model.

    Checkpoints should contain `nnx.state(model, nnx.Not(FrozenBiLM))`.
    """


def with_bilm(
    variables: Mapping[str, Any],
    bilm: PretrainedBiLM | Sequence[PretrainedBiLM],
    cache: "CachedWords | Sequence[CachedWords | None] | None" = None,
) -> dict[str, Any]:
    """Adds the frozen biLM to the variables of a task model, wherever in the model an `ELMo` is.

    Args:
      variables: the result of `init`, or a checkpoint of it: `params` and `elmo`.
      bilm: the biLM that the model was made with, or all of several, which their fingerprints tell apart.
      cache: the vectors of words that are not encoded from their characters; with several biLMs, one of each, or None.

    Returns:
      The variables with the collection `bilm`. Only `params` should be trained, and checkpoints should not contain
      `bilm`.

    Raises:
      UserError: the model was trained with another biLM, or the cache is of another one (the fingerprints differ); or
        the model has no `ELMo`.
    """
    bilms = list(bilm) if isinstance(bilm, Sequence) else [bilm]
    caches = list(cache) if isinstance(cache, Sequence) else [cache] * (1 if cache else len(bilms))
    if not bilms or len(caches) != len(bilms):
        raise UserError(f"cache: expected one per biLM, got {len(caches)} for {len(bilms)}")
    pairs = {}
    for one, cached in zip(bilms, caches, strict=True):
        if not isinstance(one, PretrainedBiLM):
            raise UserError(f"bilm: expected what elmo_jax.load_bilm returns, got {type(one).__name__}")
        if cached is not None:
            _check_cache(cached, one)
        pairs[one.fingerprint] = one, cached

    def next_to_elmo(node: Mapping[str, Any]) -> dict[str, Any]:
        added: dict[str, Any] = {}
        for name, value in node.items():
            if name == "fingerprint":
                added |= _added(value, pairs)
            else:
                added[name] = next_to_elmo(value)
        return added

    if not isinstance(variables, Mapping) or not variables.get("elmo"):
        raise UserError(
            "variables: no collection 'elmo'; expected what init of a model with elmo_jax.ELMo returns (nn.scan and"
            " nn.vmap must lift the collections 'params', 'elmo' and 'bilm')"
        )
    return {**variables, "bilm": next_to_elmo(variables["elmo"])}


def add_bilm(module: nnx.bridge.ToNNX, bilm: PretrainedBiLM, cache: "CachedWords | None" = None) -> nnx.bridge.ToNNX:
    """Adds the frozen biLM to an `ELMo` in an NNX model, and returns the same module.

    Args:
      module: the bridged module, `nnx.bridge.ToNNX(bilm.elmo(), rngs=rngs).lazy_init(characters)`.
      bilm: the biLM that the model was made with; its arrays become variables of the type `FrozenBiLM`.
      cache: the vectors of words that are not encoded from their characters.

    Raises:
      UserError: the model was trained with another biLM, or the cache is of another one (the fingerprints differ); or
        the model has no `ELMo`.
    """
    variables = {"elmo": {"fingerprint": module.fingerprint.get_value()}} if hasattr(module, "fingerprint") else {}
    for name, value in with_bilm(variables, bilm, cache)["bilm"].items():
        setattr(module, name, nnx.data(jax.tree.map(FrozenBiLM, value)))
    return module


def _check_cache(cache: "CachedWords", bilm: PretrainedBiLM) -> None:
    size, projection = bilm.config.char_cnn.max_characters, bilm.config.lstm.projection
    if cache.max_characters != size:
        raise UserError(f"cache: max_characters is {cache.max_characters}, expected {size}, that of the biLM")
    if cache.vectors.shape[1] != projection:
        raise UserError(f"cache: vectors of {cache.vectors.shape[1]} numbers, expected {projection}, as the biLM has")
    if cache.fingerprint and cache.fingerprint != bilm.fingerprint:
        its, this = f"{cache.fingerprint[:12]}…", f"{bilm.fingerprint[:12]}…"
        problem = f"the vectors are of another biLM: its fingerprint is {its}, this one's {this}"
        raise UserError(f"cache: {problem}; make them again with embed --words")


def _added(variables: Any, pairs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays to be added to an `ELMo`: its biLM, one of the known ones, and their cached words.

    Where the fingerprint is not known, because the variables are arguments of a traced function, arrays of another biLM
    become NaN.
    """
    is_traced, is_abstract = isinstance(variables, jax.core.Tracer), isinstance(variables, jax.ShapeDtypeStruct)
    if (is_traced or is_abstract) and len(pairs) > 1:
        raise UserError(
            "variables: while JAX traces, their values, which tell several biLMs apart, are not known; call"
            " elmo_jax.with_bilm outside of jit"
        )
    stored = next(iter(pairs))
    if not is_traced and not is_abstract:
        # There are several rows where a lifted transform has stacked them.
        rows = np.asarray(variables).astype(np.uint8).reshape(-1, 32)
        stored = rows[0].tobytes().hex() if rows[0].any() or len(pairs) > 1 else stored
        if stored not in pairs or (rows != rows[0]).any():
            given = ", ".join(f"{one[:12]}…" for one in pairs)
            problem = f"the model was made with another biLM: its fingerprint is {stored[:12]}…, this one's {given}"
            raise UserError(f"{problem}; load the biLM it was trained with")
    bilm, cached = pairs[stored]
    arrays: dict[str, Any] = {"tree": frozen_tree(bilm)}
    if cached is not None and len(cached.vectors):
        with standard_numerics():
            arrays["cache"] = jax.device_put(cached.vectors, may_alias=False)
    if is_abstract:
        return jax.eval_shape(lambda: arrays)
    if is_traced:
        digest = np.frombuffer(bytes.fromhex(stored), np.uint8)
        fits = (variables == digest).all() | (variables == 0).all()
        return jax.tree.map(lambda leaf: jnp.where(fits, leaf, jnp.nan).astype(leaf.dtype), arrays)
    return arrays


class CachedWords:
    """A cache of word vectors, which makes the input of `ELMo` for sentences of these and other words.

    A cache without words is useful too, since each distinct word of a batch is encoded only once. `CachedWords(words,
    vectors)` makes a cache of N words.

    Attributes:
      vectors: float32 [N, P] the cached vectors.
      max_characters: W, that of the biLM.
      fingerprint: the fingerprint of the biLM that made the vectors; "" if it is not known, to omit the check.

    Raises:
      UserError: the vectors do not have one row per word.
    """

    def __init__(
        self, words: Sequence[str], vectors: np.ndarray, max_characters: int = MAX_CHARACTERS, fingerprint: str = ""
    ) -> None:
        self.vectors = np.asarray(vectors, np.float32)
        if self.vectors.ndim != 2 or len(words) != len(self.vectors):
            shape = self.vectors.shape
            raise UserError(f"{len(words)} words for vectors of shape {shape}; expected [N, P], one row per word")
        self.max_characters, self.fingerprint = max_characters, fingerprint
        self._rows = {word: row for row, word in reversed(list(enumerate(words, 1)))}

    @classmethod
    def read(
        cls, vocabulary: str | os.PathLike[str], cache: str | os.PathLike[str], max_characters: int = MAX_CHARACTERS
    ) -> "CachedWords":
        """Reads a word list and its vectors, in the format of `elmo-jax embed --words` and of bilm-tf.

        Args:
          vocabulary: a UTF-8 file with one word per line.
          cache: an HDF5 file with the dataset `embedding` [N, P]. If it does not say which biLM it is of, as a file of
            another program, there is a warning.
          max_characters: W, that of the biLM.

        Raises:
          UserError: a file cannot be read or does not have this format, or the vectors are of other words.
        """
        words, vectors, fingerprint = read_words(local(vocabulary), local(cache))
        return cls(words, vectors, max_characters, fingerprint)

    def __call__(
        self, sentences: Sequence[Sequence[str]], rows: int = 0, steps: int = 0, others: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Makes the input of `ELMo`.

        The minimal sizes let batches have the same shape, so that no further program is compiled.

        Args:
          sentences: B lists of words.
          rows: the minimal B; rows are added up to it.
          steps: the minimal T; positions are added up to it.
          others: the minimal U; words outside the cache are added up to it.

        Returns:
          The raw character ids of the distinct words outside the cache, int32 [U, W], and the words, int32 [B, T]: 0
          beyond the end of a sentence, n for row n - 1 of the cache, -n for row n - 1 of the character ids.

        Raises:
          UserError: a sentence is a string, or a word is not a string or cannot be encoded.
        """
        check_sentences(sentences)
        longest = max(map(len, sentences), default=0)
        words = np.zeros((max(rows, len(sentences)), max(steps, longest)), np.int32)
        new_words: dict[str, int] = {}
        for row, sentence in enumerate(sentences):
            for step, word in enumerate(sentence):
                known = self._rows.get(word)
                if known is None:
                    check_word(word, self.max_characters)
                    known = -1 - new_words.setdefault(word, len(new_words))
                words[row, step] = known
        characters = encode_chars([*new_words] + [""] * max(max(others, 1) - len(new_words), 0), self.max_characters)
        return characters.astype(np.int32), words
