"""Gives the decoder of probabilities the scores of the original programs, which are added."""

import numpy as np

from elmo_jax.tasks.squad.task import most_probable_span


def spans_of_scores(start: np.ndarray, end: np.ndarray, longest: int) -> tuple[list[tuple[int, int]], list[float]]:
    """Returns the span of each row [B, T] with the largest sum of scores, and these sums.

    Products of powers of two are sums of scores, and exact for whole numbers, so that equal sums stay equal.
    """
    powers = zip(2.0 ** start.astype(np.float64), 2.0 ** end.astype(np.float64), strict=True)
    actual = [most_probable_span(*row, longest) for row in powers]
    return [(first, last) for first, last, _ in actual], [float(np.log2(product)) for *_, product in actual]
