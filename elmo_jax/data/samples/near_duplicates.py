"""Texts that are versions of one another, so that none is trained on while another is held out.

Two texts are near-duplicates where half of the runs of five words of the shorter one stand in the other (containment,
Broder 1997). Every pair is compared, exactly: that is meant for some thousand texts.

Shapes: n texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

RUN = 5  # words; runs of fewer are phrases that any two texts share
SHARE = 0.5

_WORD = re.compile(r"\w+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # any large odd number: it spreads the words of a run over 64 bits


def near_duplicates(texts: Sequence[str]) -> np.ndarray:
    """Clusters of near-duplicates: texts that are connected by pairs of them.

    Args:
        texts: `n` texts; case and punctuation play no part.

    Returns:
        int64 `[n]`: for each text, the index of the first of its cluster.
    """
    if not texts:
        return np.zeros(0, np.int64)
    numbers: dict[str, int] = {}
    runs = [_runs(text, numbers) for text in texts]
    sizes = np.array([len(found) for found in runs])
    # every run's texts, side by side: those of run r are owners[starts[r] : starts[r + 1]]
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
    """The distinct runs of `RUN` words, each as 64 bits that stand for it; `numbers` (word to number) grows."""
    words = np.array([numbers.setdefault(word, len(numbers)) for word in _WORD.findall(text.lower())], np.uint64)
    number = max(len(words) - RUN + 1, 0)
    found = np.zeros(number, np.uint64)
    for place in range(RUN):
        found = (found ^ words[place : place + number]) * _FACTOR
        found ^= found >> np.uint64(29)
    return np.unique(found)
