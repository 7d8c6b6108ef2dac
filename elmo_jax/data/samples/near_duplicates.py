"""Finds texts that are versions of one another, so that none is trained on while another is held out.

Two texts are near-duplicates if half of the runs of five words of the shorter one occur in the other (containment,
Broder 1997). All pairs are compared exactly, which is feasible for a few thousand texts.

Shapes: n texts.
"""

import re
from collections.abc import Sequence

import numpy as np

RUN = 5  # words; shorter runs are phrases that unrelated texts share
SHARE = 0.5  # the least share of common runs of two near-duplicates

_WORD = re.compile(r"\w+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # any large odd number would do; it spreads the words of a run over 64 bits


def near_duplicates(texts: Sequence[str]) -> np.ndarray:
    """Finds the clusters of texts that are connected by pairs of near-duplicates.

    Args:
      texts: `n` texts; case and punctuation are ignored.

    Returns:
      For each text, the index of the first text of its cluster, int64 `[n]`.
    """
    if not texts:
        return np.zeros(0, np.int64)
    numbers: dict[str, int] = {}
    runs = [_runs(text, numbers) for text in texts]
    sizes = np.array([len(found) for found in runs])
    # The texts that contain a run are adjacent: those of run r are owners[starts[r] : starts[r + 1]].
    _, ids = np.unique(np.concatenate([np.zeros(0, np.uint64), *runs]), return_inverse=True)
    owners = np.repeat(np.arange(len(texts)), sizes)[np.argsort(ids, kind="stable")]
    starts = np.append(0, np.cumsum(np.bincount(ids)))
    cluster = np.arange(len(texts))
    for text, found in enumerate(np.split(ids, np.cumsum(sizes)[:-1])):
        shared = [owners[starts[run] : starts[run + 1]] for run in found if starts[run + 1] - starts[run] > 1]
        common = np.bincount(np.concatenate(shared), minlength=len(texts))[:text] if shared else np.zeros(text, int)
        near = np.flatnonzero((common > 0) & (common >= SHARE * np.minimum(sizes[text], sizes[:text])))
        for other in np.unique(cluster[near]):
            low, high = sorted((cluster[text], other))
            cluster[cluster == high] = low
    return cluster


def _runs(text: str, numbers: dict[str, int]) -> np.ndarray:
    """Returns the distinct runs of `RUN` words, each as a hash of 64 bits; new words are added to `numbers`."""
    words = np.array([numbers.setdefault(word, len(numbers)) for word in _WORD.findall(text.lower())], np.uint64)
    number = max(len(words) - RUN + 1, 0)
    found = np.zeros(number, np.uint64)
    for place in range(RUN):
        found = (found ^ words[place : place + number]) * _FACTOR
        found ^= found >> np.uint64(29)
    return np.unique(found)
