"""Makes clusters of mentions from the antecedents that a model chose."""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[int, int]


def clusters(
    starts: Sequence[int], ends: Sequence[int], antecedents: Sequence[int], kept: Sequence[bool]
) -> list[list[Span]]:
    """Returns the connected components of the links between spans; spans without a link are dropped.

    Args:
      starts: the first word of each kept span, in the order of (start, end).
      ends: the last word of each kept span, inclusive.
      antecedents: the place of each span's antecedent, which is before its own place, or -1 for none.
      kept: false for spans that only fill up the arrays.

    Returns:
      The clusters in the order of their first spans, each a sorted list of (start, end).
    """
    cluster_of: dict[int, list[Span]] = {}
    found: list[list[Span]] = []
    for place, antecedent in enumerate(antecedents):
        if not kept[place] or antecedent < 0:
            continue
        if antecedent not in cluster_of:
            cluster_of[antecedent] = [(int(starts[antecedent]), int(ends[antecedent]))]
            found.append(cluster_of[antecedent])
        cluster_of[place] = cluster_of[antecedent]
        cluster_of[place].append((int(starts[place]), int(ends[place])))
    return sorted(map(sorted, found))
