"""The lexicon of a corpus: every word, with its id and its count in the training text.

Ids 0, 1, 2 are `<S>`, `</S>`, `<UNK>`; then come the words by descending count, and words of equal count in the order
of their UTF-8 bytes. The first V words are the softmax vocabulary. The other words are inputs by their characters, like
all words, but as targets they are `<UNK>`. Words that occur in the held-out text only come last, with count 0: their
spelling is needed, but counts of held-out text must not influence the model.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from elmo_jax.characters import MARKS
from elmo_jax.errors import UserError
from elmo_jax.files import temporary_folder
from elmo_jax.text_files import error_at, read_lines
from elmo_jax.words import split_words

BEGIN_SENTENCE_ID, END_SENTENCE_ID, UNKNOWN_ID = range(3)
_NO_WORD = "!!!MAXTERMID"  # a line of a vocabulary file that bilm-tf skips
DEFAULT_MIN_COUNT = 2  # where neither a size nor a count is given


@dataclasses.dataclass(frozen=True)
class Lexicon:
    """The words of a corpus by id."""

    words: list[str]  # every word; its index is its id
    counts: np.ndarray  # int64 [words], in the training text; those of <S> and </S> are the number of sentences
    vocabulary_size: int  # V, the number of words of the softmax, including the three marks

    def write(self, lexicon: Path, vocabulary: Path) -> None:
        """Writes two files: a line `word TAB count` for every word, and the first V words, one per line."""
        lines = (f"{word}\t{count}\n" for word, count in zip(self.words, self.counts, strict=True))
        with lexicon.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
        with vocabulary.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(word + "\n" for word in self.words[: self.vocabulary_size])


def build_lexicon(
    words: Sequence[str],
    counts: np.ndarray,
    vocabulary: Sequence[str] | None = None,
    vocabulary_size: int | None = None,
    min_count: int | None = None,
    base: Sequence[str] | None = None,
) -> tuple[Lexicon, np.ndarray]:
    """Assigns an id to every word.

    Args:
      words: `n` distinct words, the three marks first and the others in any order.
      counts: int64 `[n]`, their counts in the training text.
      vocabulary: the softmax vocabulary; if None, it consists of the most frequent words.
      vocabulary_size: the maximum of V, including the three marks and the words of `base`.
      min_count: the least count of a word of the vocabulary; 2 unless given, or 1 if a size is given.
      base: words that come first in the vocabulary, whatever their counts; the most frequent others follow.

    Returns:
      The lexicon, and the id of each of `words`, int32 `[n]`.
    """
    given = list(vocabulary or base or MARKS)
    place = {word: i for i, word in enumerate(words)}
    first = [place.get(word, -1) for word in given]
    rest = np.setdiff1d(np.arange(len(words)), first)
    # Sorting strings sorts by code point, which is the order of the UTF-8 bytes; the stable sort by count preserves it.
    rest = np.array(sorted(rest.tolist(), key=words.__getitem__), np.int64)
    rest = rest[np.argsort(-counts[rest], kind="stable")]
    ids = np.full(len(words), -1, np.int32)
    ids[rest] = len(given) + np.arange(len(rest))
    for i, at in enumerate(first):
        if at >= 0:
            ids[at] = i
    ordered = [*given, *(words[at] for at in rest)]
    ordered_counts = np.zeros(len(ordered), np.int64)
    ordered_counts[ids] = counts
    if vocabulary is not None:
        return Lexicon(ordered, ordered_counts, len(given)), ids
    if min_count is None:
        min_count = DEFAULT_MIN_COUNT if vocabulary_size is None else 1
    size = len(given) + int(np.count_nonzero(counts[rest] >= max(min_count, 1)))
    return Lexicon(ordered, ordered_counts, min(size, vocabulary_size or size)), ids


@contextlib.contextmanager
def vocabulary_file(words: Iterable[str]) -> Iterator[Path]:
    """Yields a temporary file with one word per line, as `read_vocabulary` reads it."""
    with temporary_folder() as folder:
        file = folder / "vocabulary.txt"
        file.write_text("".join(f"{word}\n" for word in words), encoding="utf-8", newline="\n")
        yield file


def read_vocabulary(path: Path) -> list[str]:
    """Reads a vocabulary file with one word per line: `<S>`, `</S>`, `<UNK>` on any lines, the others by falling count.

    Returns:
      The three marks, and then the other words in their order.

    Raises:
      UserError: the file cannot be read, a mark is missing, a word is repeated, or a line is not one word.
    """
    return marks_first(words_by_line(path))


def marks_first(words: Iterable[str]) -> list[str]:
    """Returns the words with the three marks, which are among them, in front of the others."""
    return [*MARKS, *(word for word in words if word not in MARKS)]


def words_by_line(path: Path) -> list[str]:
    """Reads a vocabulary file as `read_vocabulary` does, and returns the words in the order of the lines."""
    places: dict[str, int] = {}
    for number, word in read_lines(path):
        if word == _NO_WORD:
            continue
        if split_words(word) != [word]:
            raise error_at(path, number, f"{word!r} is not one word; expected one word per line")
        if word in places:
            raise UserError(
                f"{path}: the word {word!r} is on line {places[word]} and on line {number}; remove one of them"
            )
        places[word] = number
    missing = [mark for mark in MARKS if mark not in places]
    if missing:
        raise UserError(
            f"{path}: no {' and no '.join(missing)}; a vocabulary has {', '.join(MARKS)} among its words, one per line"
        )
    return list(places)
