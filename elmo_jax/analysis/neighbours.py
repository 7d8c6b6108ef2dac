"""Finds the words of a text whose vectors in context are nearest to that of a query (paper, section 5.3, Table 4).

Shapes: N words of the text, Q queries, F numbers per vector, k neighbours.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elmo_jax.data.prepare.options import TextOptions
from elmo_jax.data.prepare.pieces import chunks
from elmo_jax.data.prepare.sources import open_sources, say_formats, size_of
from elmo_jax.data.prepare.text import Errors, tokenize, unspaced_error
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.errors import UserError
from elmo_jax.runs.progress import Progress
from elmo_jax.tasks.core.elmo_vectors import LayerCache, make, unpack_layers

Words = tuple[str, ...]
BATCH = 64  # sentences embedded together by `nearest_uses`
_BLANK = "…"


class Occurrence(NamedTuple):
    """A word in its sentence."""

    words: Words
    position: int

    @property
    def word(self) -> str:
        return self.words[self.position]

    def shown(self, around: int = 12) -> str:
        """Returns the word in brackets with up to `around` words on either side."""
        first, last = max(self.position - around, 0), self.position + 1 + around
        left, right = self.words[first : self.position], self.words[self.position + 1 : last]
        start, end = [_BLANK] * (first > 0), [_BLANK] * (last < len(self.words))
        return " ".join([*start, *left, f"[{self.word}]", *right, *end])


class Neighbour(NamedTuple):
    """An occurrence, and the cosine between its vector and that of the query."""

    cosine: float
    occurrence: Occurrence


def read_text(source: str, options: TextOptions) -> list[Words]:
    """Returns the sentences of a running or tokenized text; `elmo_jax.data.prepare.text` describes the formats."""
    opened, sentences = open_sources([source], options), []
    say_formats(opened, show=True)
    on_disk = 0
    with Progress("reading the text", "words", size_of(opened)) as progress:
        for chunk in chunks(opened, Errors(options.errors), options.language):
            tokenized = tokenize(chunk)
            if tokenized.unspaced:
                raise unspaced_error(chunk.pieces[tokenized.unspaced[0]])
            words = [tokenized.types[number] for number in tokenized.ids]
            ends = np.cumsum(tokenized.lengths)
            sentences += [tuple(words[end - length : end]) for end, length in zip(ends, tokenized.lengths, strict=True)]
            progress.add(len(words), chunk.read - on_disk)
            on_disk = chunk.read
    if not sentences:
        raise UserError(f"{source}: has no words")
    return sentences


def _uses(sentences: Sequence[Words]) -> Iterator[Occurrence]:
    return (Occurrence(words, i) for words in dict.fromkeys(sentences) for i in range(len(words)))


def occurrences(sentences: Sequence[Words], word: str) -> list[Occurrence]:
    """Returns the occurrences of a word, in exactly this spelling, in some sentences; equal sentences count once."""
    return [use for use in _uses(sentences) if use.word == word]


def occurrence_in(words: Words, word: str) -> Occurrence:
    """Returns the first occurrence of a word in a sentence. Raises `UserError` if there is none."""
    if word not in words:
        raise UserError(f"the word {word!r} is not in the sentence: {' '.join(words)[:120]!r}")
    return Occurrence(words, words.index(word))


def nearest(
    folder: Path,
    bilm: EmbeddingBiLM,
    sentences: Sequence[Words],
    queries: Sequence[Occurrence],
    number: int,
    layer: int = 2,
) -> list[list[Neighbour]]:
    """Returns the `number` nearest words of a text by cosine for each query, nearest first; fewer if it has fewer.

    A sentence that occurs several times counts once, and the words of the query's own sentence are not neighbours. The
    vectors [forward; backward] of a layer are compared (the paper takes layer 2), which `folder` keeps as float16 for
    later calls. A query need not be in the text.
    """
    distinct = list(dict.fromkeys(filter(None, sentences)))
    ends = np.cumsum([len(words) for words in distinct])
    asked = _unit_vectors(bilm, queries, layer)  # [Q, F]
    stored = LayerCache(make(folder, bilm, distinct, "float16").files)
    cosines = np.empty((len(queries), int(ends[-1]) if distinct else 0), np.float32)  # [Q, N]
    with Progress("comparing", "words", cosines.shape[1]) as progress:
        for words, end in zip(distinct, ends.tolist(), strict=True):
            vectors = unpack_layers(stored[words][None], bilm.config, np)[0, layer]
            cosines[:, end - len(words) : end] = asked @ _unit(vectors).T
            progress.add(len(words))

    def use(row: int) -> Occurrence:  # made only for those that are ranked, since a text may have millions of words
        words = distinct[sentence := int(np.searchsorted(ends, row, "right"))]
        return Occurrence(words, row - int(ends[sentence]) + len(words))

    return [_ranked(query, each, use, number) for query, each in zip(queries, cosines, strict=True)]


def nearest_uses(
    bilm: EmbeddingBiLM, sentences: Sequence[Words], queries: Sequence[Occurrence], number: int, layer: int = 2
) -> list[list[Neighbour]]:
    """Returns the nearest uses of the queries' own words, in capitals or not, in other sentences of the text.

    Only the sentences that have one of these words are embedded, where `nearest` embeds all of them. The arguments and
    the result are otherwise those of `nearest`.
    """
    forms = {query.word.lower() for query in queries}
    uses = [use for use in _uses(sentences) if use.word.lower() in forms]
    vectors = _unit_vectors(bilm, [*queries, *uses], layer)
    cosines = vectors[: len(queries)] @ vectors[len(queries) :].T
    return [_ranked(query, each, uses.__getitem__, number, True) for query, each in zip(queries, cosines, strict=True)]


def _ranked(
    query: Occurrence, cosines: np.ndarray, use: Callable[[int], Occurrence], number: int, same_word: bool = False
) -> list[Neighbour]:
    ranked = (Neighbour(float(cosines[row]), use(row)) for row in map(int, np.argsort(-cosines, kind="stable")))
    others = (one for one in ranked if one.occurrence.words != query.words)
    word = query.word.lower()
    return list(itertools.islice((o for o in others if not same_word or o.occurrence.word.lower() == word), number))


def _unit_vectors(bilm: EmbeddingBiLM, uses: Sequence[Occurrence], layer: int) -> np.ndarray:
    """Returns the vectors of some words in their sentences, divided by their lengths, [N, F]."""
    if not 0 <= layer <= bilm.config.lstm.layers:
        raise UserError(f"layer {layer}: expected 0 to {bilm.config.lstm.layers}, the layers of the biLM")
    vectors = np.zeros((len(uses), bilm.config.width), np.float32)
    rows: dict[Words, list[int]] = {}  # of each distinct sentence
    for row, occurrence in enumerate(uses):
        rows.setdefault(occurrence.words, []).append(row)
    order = sorted(rows, key=len)
    with Progress("embedding", "sentences", len(order)) as progress:
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            for words, layers in zip(batch, bilm.embed(batch)[0], strict=True):
                vectors[rows[words]] = layers[layer, [uses[row].position for row in rows[words]]]
            progress.add(len(batch))
    return _unit(vectors)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
