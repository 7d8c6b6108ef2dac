"""Finds the best answer span of a context."""

from __future__ import annotations

import numpy as np


def most_probable_span(start: np.ndarray, end: np.ndarray, longest: int) -> tuple[int, int, float]:
    """Returns the span with the largest product of the probabilities of its first and its last word.

    Of equal products, the shortest span wins, and of equally short ones the first.

    Args:
      start: [T], the probability of each word to be the first of the answer.
      end: [T], the probability of each word to be the last of the answer.
      longest: the number of words of the longest span, at least 1.

    Returns:
      The first and the last word, both inclusive, and the product; it is taken in float64, where it cannot underflow.
    """
    start, end = start.astype(np.float64), end.astype(np.float64)
    found = (0, 0, -1.0)
    for extra in range(min(longest, len(start))):
        products = start[: len(start) - extra] * end[extra:]
        first = int(products.argmax())
        if products[first] > found[2]:
            found = (first, first + extra, float(products[first]))
    return found
