"""The lexicon: every word of a corpus, with an id and its count in the training text.

Ids 0, 1, 2 are `<S>`, `</S>`, `<UNK>`; then the words by falling count, words of equal count in the
order of their UTF-8 bytes. The first V words are the softmax vocabulary; the rest are read through
their characters at the input and are `<UNK>` as targets. Words of the held-out text alone stand at the
end with count 0: their spelling is needed, but no count of theirs may reach the model.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from elmo_jax.characters import MARKS
from elmo_jax.errors import UserError

BEGIN_SENTENCE_ID, END_SENTENCE_ID, UNKNOWN_ID = range(3)
DEFAULT_MIN_COUNT = 2  # where neither a size nor a count is given


@dataclasses.dataclass(frozen=True)
class Lexicon:
    """Words by id.

    Attributes:
        words: every word; its place is its id.
        counts: int64 `[words]`, uses in the training text; those of `<S>` and `</S>` are its sentences.
        vocabulary_size: V, the words of the softmax, the first three among them.
    """

    words: list[str]
    counts: np.ndarray
    vocabulary_size: int

    def write(self, lexicon: Path, vocabulary: Path) -> None:
        """Write `word TAB count` lines for every word, and the first V words one a line."""
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
    """Give every word its id.

    Args:
        words: `n` distinct words in any order, the three marks first.
        counts: int64 `[n]`, their uses in the training text.
        vocabulary: the softmax vocabulary, if given; otherwise it is the most frequent words.
        vocabulary_size: V at most, the three marks and those of `base` included.
        min_count: a word of the vocabulary is used this often; 2 unless given, or 1 where a
            size is given.
        base: words that come first, however rare they are here; the most frequent others follow.

    Returns:
        The lexicon, and int32 `[n]`: the id of each of `words`.
    """
    given = list(vocabulary or base or MARKS)
    place = {word: i for i, word in enumerate(words)}
    first = [place.get(word, -1) for word in given]
    rest = np.setdiff1d(np.arange(len(words)), first)
    # Sorted by code point, which is the order of the UTF-8 bytes; then by count, which keeps it.
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


def read_vocabulary(path: Path) -> list[str]:
    """Read a vocabulary file: one word a line, `<S>`, `</S>`, `<UNK>` first, then by falling count.

    Raises:
        UserError: unreadable, a mark is missing or elsewhere, a word twice, or a line that is no word.
    """
    try:
        lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    except OSError as error:
        raise UserError(f"{path}: the vocabulary cannot be read ({error.strerror})") from None
    places: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        try:
            word = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise UserError(f"{path}, line {number}: not UTF-8; expected one word a line") from None
        if word.split() != [word]:
            raise UserError(f"{path}, line {number}: {word!r} is not one word; expected one word a line")
        if word in places:
            raise UserError(
                f"{path}: the word {word!r} is on line {places[word]} and on line {number}; remove one of them"
            )
        places[word] = number
    missing = [mark for mark in MARKS if mark not in places]
    if missing:
        raise UserError(
            f"{path}: no {' and no '.join(missing)}; a vocabulary begins with {', '.join(MARKS)}, one a line"
        )
    words = list(places)
    if words[: len(MARKS)] != list(MARKS):
        number = next(i for i, mark in enumerate(MARKS) if words[i] != mark)
        raise UserError(
            f"{path}, line {number + 1}: {words[number]!r}; expected {MARKS[number]!r}, "
            f"since a vocabulary begins with {', '.join(MARKS)}, one a line"
        )
    return words
