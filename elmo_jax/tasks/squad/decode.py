"""Finds the best answer span of a context.

Shapes: B rows, T words, W widths of spans.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def best_spans(start: jax.Array, end: jax.Array, longest: int) -> tuple[jax.Array, jax.Array]:
    """Returns the spans with the largest sums of the scores of their first and last words.

    Of equal sums, the shortest span wins, and of equally short ones the first. For an ensemble, the scores are
    logarithms of averaged probabilities.

    Args:
      start: [B, T], the score of each word as the first of a span.
      end: [B, T], the score of each word as the last of a span.
      longest: the number of words of the longest span, at least 1.

    Returns:
      The spans int32 [B, 2], first and last word, both inclusive, and their scores [B].
    """
    rows, steps = start.shape
    widths = min(longest, steps)
    ends = jnp.arange(steps) + jnp.arange(widths)[:, None]  # [W, T]
    inside = ends < steps
    scores = start[:, None] + end[:, jnp.where(inside, ends, 0)]  # [B, W, T]
    # In this order, the first of equal scores is that of the shortest span, and of the first among equally short ones.
    flat = jnp.where(inside, scores, -jnp.inf).reshape(rows, -1)
    best = flat.argmax(-1)
    first, extra = best % steps, best // steps
    return jnp.stack([first, first + extra], axis=-1).astype(jnp.int32), flat.max(-1)


def most_probable_span(start: np.ndarray, end: np.ndarray, longest: int) -> tuple[int, int, float]:
    """Returns the span with the largest product of two probabilities, on the host; ties are broken as by `best_spans`.

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
