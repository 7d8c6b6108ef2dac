"""Converts tags of words to numbers and to lines of a file, for the tasks that tag words.

Shapes: B examples per batch, T words of the longest example.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


def tag_set(sentences: Iterable[Sequence[str]]) -> list[str]:
    """Returns the tags of some sentences in alphabetical order; the place of a tag in the list is its number."""
    return sorted({tag for tags in sentences for tag in tags})


def tag_ids(sentences: Sequence[Sequence[str]], number: int, length: int, tags: Sequence[str]) -> np.ndarray:
    """Returns the numbers of the gold tags, int32 [B, T].

    Args:
      sentences: the gold tags of at most `number` sentences; those of a sentence without annotation are empty.
      number: B.
      length: T.
      tags: all tags, in the order of their numbers. A gold tag that is not among them, which only happens outside of
        the training examples, gets the number 0. This affects the loss alone, since scores compare the tags themselves.
    """
    numbers = {tag: i for i, tag in enumerate(tags)}
    found = np.zeros((number, length), np.int32)
    for row, sentence in enumerate(sentences):
        found[row, : len(sentence)] = [numbers.get(tag, 0) for tag in sentence]
    return found


def tag_rows(numbers: np.ndarray, sentences: Sequence[Sequence[str]], tags: Sequence[str]) -> list[list[str]]:
    """Returns the tags of the words of some sentences.

    Args:
      numbers: int [B, T], the numbers of the tags; B is at least the number of sentences.
      sentences: the words of the sentences.
      tags: all tags, in the order of their numbers.
    """
    return [[tags[i] for i in numbers[row, : len(words)]] for row, words in enumerate(sentences)]


def tagged_line(words: Sequence[str], gold: Sequence[str], predicted: Sequence[str]) -> str:
    """Returns the lines of a sentence with word, gold tag (if there is one) and predicted tag, and a blank line."""
    columns = [words, gold, predicted] if gold else [words, predicted]
    return "".join("\t".join(row) + "\n" for row in zip(*columns, strict=True)) + "\n"
