"""Chooses the words and characters that a task model has vectors of, by its training text.

Shapes: V words with a vector, D numbers per vector.
"""

import dataclasses
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from elmo_jax.errors import UserError
from elmo_jax.files import listed
from elmo_jax.tasks.core.config import CharactersConfig, WordVectorsConfig
from elmo_jax.tasks.core.word_vectors import read_vectors

PADDING_ID, UNKNOWN_ID = 0, 1
_FIRST_ID = 2
_DIGIT = re.compile(r"\d")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The words and characters by id; in both, id 0 is padding and id 1 is anything unknown."""

    words: list[str]  # the forms of words, from id 2 on
    characters: list[str]  # the characters, from id 2 on
    config: WordVectorsConfig  # the settings that determine the form of a word

    @functools.cached_property
    def _word_ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words, _FIRST_ID)}

    @functools.cached_property
    def _character_ids(self) -> dict[str, int]:
        return {character: i for i, character in enumerate(self.characters, _FIRST_ID)}

    @property
    def word_rows(self) -> int:
        """The number of rows of a table of word vectors."""
        return _FIRST_ID + len(self.words)

    @property
    def character_rows(self) -> int:
        """The number of rows of a table of character vectors."""
        return _FIRST_ID + len(self.characters)

    def word_id(self, word: str) -> int:
        """Returns the id of a word."""
        ids = self._word_ids
        return next((ids[form] for form in forms(word, self.config) if form in ids), UNKNOWN_ID)

    def character_ids(self, word: str, most: int) -> list[int]:
        """Returns the ids of a word's first `most` characters."""
        return [self._character_ids.get(character, UNKNOWN_ID) for character in word[:most]]

    def as_dict(self) -> dict[str, Any]:
        """Returns the words and the characters as a dict that is written to JSON."""
        return {"words": self.words, "characters": self.characters}


def forms(word: str, config: WordVectorsConfig) -> list[str]:
    """Returns the forms under which a word is looked up, the preferred one first."""
    if config.digits == "zero":
        word = _DIGIT.sub("0", word)
    if config.lowercase == "always":
        return [word.lower()]
    return [word, word.lower()] if config.lowercase == "if_absent" else [word]


@dataclasses.dataclass(frozen=True)
class WordTable:
    """The initial word vectors of a task model."""

    vectors: np.ndarray  # float32 [V + 2, D], zeros in the rows that have no pretrained vector
    random: np.ndarray  # bool [V + 2], true for the rows that are drawn at random
    spread: float  # the standard deviation of the random numbers
    # the fractions of the training text's distinct words and of its tokens that have a pretrained vector; None
    # if there are no pretrained vectors
    found: tuple[float, float] | None

    @property
    def fingerprint(self) -> str:
        """A digest of the vectors, which does not depend on the path of their file."""
        digest = hashlib.sha256(repr((self.vectors.shape, self.spread)).encode())
        digest.update(self.vectors.tobytes())
        digest.update(self.random.tobytes())
        return digest.hexdigest()

    def first_vectors(self, seed: int) -> np.ndarray:
        """Returns the vectors, float32 [V + 2, D], with the random rows of a seed; row 0, that of padding, is zero."""
        rng = np.random.default_rng([seed, 7])
        drawn = self.spread * rng.standard_normal(self.vectors.shape)
        return np.where(self.random[:, None], drawn, self.vectors).astype(np.float32)


def build(
    train: Iterable[Sequence[str]],
    others: Iterable[Sequence[str]],
    words: WordVectorsConfig,
    characters: CharactersConfig,
) -> tuple[Vocabulary, WordTable]:
    """Chooses the vocabulary by the training sentences, and reads the pretrained vectors of its words.

    A word of the `others` alone has a vector only if there is a pretrained one.

    Raises:
      UserError: the file of word vectors cannot be read, or has no word of the examples.
    """
    counts = Counter(word for sentence in train for word in sentence)
    letters: list[str] = []
    if characters.filters:
        uses: Counter[str] = Counter()
        for word, number in counts.items():
            for character in word:
                uses[character] += number
        letters = sorted(character for character, number in uses.items() if number >= characters.min_count)
    if not words.path and not words.dim:
        return Vocabulary([], letters, words), WordTable(np.zeros((2, 0), "f4"), np.zeros(2, bool), 0.0, None)
    every = {word for sentence in others for word in sentence} | counts.keys()
    pretrained: dict[str, np.ndarray] = {}
    if words.path:
        pretrained = _pretrained(words, {form for word in every for form in forms(word, words)})
    chosen = sorted(pretrained)
    if not words.path or words.unknown == "random":
        rest: Counter[str] = Counter()
        for word, number in counts.items():
            if not any(form in pretrained for form in forms(word, words)):
                rest[forms(word, words)[-1]] += number
        chosen += sorted(form for form, number in rest.items() if number >= words.min_count)
    return Vocabulary(chosen, letters, words), _table(chosen, pretrained, words, counts)


def _pretrained(config: WordVectorsConfig, wanted: set[str]) -> dict[str, np.ndarray]:
    """Reads the vectors of all files, side by side; a word that a file lacks has zeros for its part."""
    parts: list[dict[str, np.ndarray]] = []
    for path in listed(config.path):
        found = read_vectors(path, wanted)
        if not found:
            raise UserError(f"{path}: has none of the training text's words; are they spelled differently?")
        if config.normalize:
            found = {word: vector / max(float(np.linalg.norm(vector)), 1e-12) for word, vector in found.items()}
        parts.append(found)
    zeros = [np.zeros(len(next(iter(part.values()))), np.float32) for part in parts]
    every = {word for part in parts for word in part}
    return {
        word: np.concatenate([part.get(word, zero) for part, zero in zip(parts, zeros, strict=True)]) for word in every
    }


def _table(
    chosen: Sequence[str], pretrained: dict[str, np.ndarray], config: WordVectorsConfig, counts: Counter[str]
) -> WordTable:
    dim = len(next(iter(pretrained.values()))) if pretrained else config.dim
    vectors = np.zeros((_FIRST_ID + len(chosen), dim), np.float32)
    for row, word in enumerate(chosen, _FIRST_ID):
        if word in pretrained:
            vectors[row] = pretrained[word]
    random = np.array([False, True, *(word not in pretrained for word in chosen)])
    if pretrained and config.unknown == "zero":
        random[:] = False
    known = vectors[~random][1:]
    spread = float(known.std()) if len(known) else dim**-0.5
    found = None
    if config.path:
        has = [word for word in counts if any(form in pretrained for form in forms(word, config))]
        found = (len(has) / max(len(counts), 1), sum(counts[w] for w in has) / max(sum(counts.values()), 1))
    return WordTable(vectors, random, spread, found)
