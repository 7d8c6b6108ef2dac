"""The lexicon of a corpus: every word, with its id and its count in the training text.

Ids 0, 1, 2 are `<S>`, `</S>`, `<UNK>`; then come the words by descending count, and words of equal count in the order
of their UTF-8 bytes. The first V words are the softmax vocabulary. The other words are inputs by their characters, like
all words, but as targets they are `<UNK>`. Words that occur in the held-out text only come last, with count 0: their
spelling is needed, but counts of held-out text must not influence the model.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from etils import epath

from elmo_jax.characters import SPECIAL_WORDS
from elmo_jax.errors import UserError
from elmo_jax.files import temporary_folder
from elmo_jax.text_files import error_at, read_lines
from elmo_jax.words import split_words

BEGIN_SENTENCE_ID, END_SENTENCE_ID, UNKNOWN_ID = range(3)
LEXICON, VOCABULARY = "lexicon.tsv", "vocabulary.txt"  # the files of a corpus
LONG_WORD = 48  # bytes that the model reads of a word (original: 50, including the begin and end characters)
_NO_WORD = "!!!MAXTERMID"  # a line of a vocabulary file that bilm-tf skips
DEFAULT_MIN_COUNT = 2  # where neither a size nor a count is given


Entry = tuple[str, int]  # a word, and its count in the training text


def order_of(given: Sequence[str]) -> Callable[[Entry], tuple[int, int, str]]:
    """Returns the key by which the entries of a lexicon are sorted; the words `given` come first, in this order."""
    rank = {word: number for number, word in enumerate(given)}
    # Strings are compared by code point, which is the order of their UTF-8 bytes.
    return lambda entry: (rank.get(entry[0], len(rank)), -entry[1], entry[0])


def write_lexicon(
    folder: epath.Path,
    entries: Iterable[Entry],
    given: int,
    vocabulary_size: int | None = None,
    min_count: int | None = None,
) -> dict[str, int]:
    """Writes two files: a line `word TAB count` for every word, and the words of the softmax, one per line.

    The `entries` are sorted by `order_of`. The first `given` words are in the vocabulary whatever their counts, and
    others if they occur at least `min_count` times, unless it is None. Returns the numbers of words (`types`), of those
    of the softmax (`vocabulary_size`), and of those of more than `LONG_WORD` bytes (`long_words`).
    """
    types = size = long_words = 0
    with (folder / LEXICON).open("wb") as lexicon, (folder / VOCABULARY).open("wb") as vocabulary:
        for types, (word, count) in enumerate(entries, 1):  # noqa: B007
            data = word.encode()
            lexicon.write(b"%s\t%d\n" % (data, count))
            long_words += len(data) > LONG_WORD
            has_room = vocabulary_size is None or size < vocabulary_size
            if size < given or (min_count is not None and count >= min_count and has_room):
                vocabulary.write(data + b"\n")
                size += 1
    return {"types": types, "vocabulary_size": size, "long_words": long_words}


@contextlib.contextmanager
def vocabulary_file(words: Iterable[str]) -> Iterator[Path]:
    """Yields a temporary file with one word per line, as `read_vocabulary` reads it."""
    with temporary_folder() as folder:
        file = folder / "vocabulary.txt"
        file.write_text("".join(f"{word}\n" for word in words), encoding="utf-8", newline="\n")
        yield file


def read_vocabulary(path: Path) -> list[str]:
    """Reads a vocabulary file, one word per line, with the three special words, which may be on any lines, first."""
    return marks_first(words_by_line(path))


def marks_first(words: Iterable[str]) -> list[str]:
    """Returns the words with the three special words, which are among them, in front of the others."""
    return [*SPECIAL_WORDS, *(word for word in words if word not in SPECIAL_WORDS)]


def words_by_line(path: Path) -> list[str]:
    """Reads a vocabulary file as `read_vocabulary` does, and returns the words in the order of the lines."""
    lines: dict[str, int] = {}
    for number, word in read_lines(path):
        if word == _NO_WORD:
            continue
        if split_words(word) != [word]:
            raise error_at(path, number, f"{word!r} is not one word; expected one word per line")
        if word in lines:
            raise UserError(f"{path}: the word {word!r} is on line {lines[word]} and on line {number}; remove one")
        lines[word] = number
    missing = [mark for mark in SPECIAL_WORDS if mark not in lines]
    if missing:
        expected = f"a vocabulary has {', '.join(SPECIAL_WORDS)} among its words, one per line"
        raise UserError(f"{path}: no {' and no '.join(missing)}; {expected}")
    return list(lines)
